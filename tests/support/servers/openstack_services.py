"""A real Keystone and a real Neutron as plain processes, from the virtual environment that tools/test makes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import textwrap
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from support.labs.small_lab import until
from support.servers import mariadb_server
from support.servers.ports import free_port

ROOT: Final = Path(__file__).parents[3]
ENVIRONMENT: Final = ROOT / ".venv" / "openstack"
SERVE: Final = ROOT / "tests" / "data" / "openstack" / "serve.py"

PASSWORD: Final = "canary-openstack-4c1d"
STARTS_WITHIN: Final = 400.0
AGENT_TYPE: Final = "Open vSwitch agent"


class Service:
    """One process that serves a WSGI application."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def run(self, program: str, *words: str) -> None:
        """Run one of the environment's programs to its end."""
        done = subprocess.run([str(ENVIRONMENT / "bin" / program), *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self, module: str, environment: Mapping[str, str]) -> None:
        """Start it; it listens when this returns."""
        with (self.folder / f"{self.name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(ENVIRONMENT / "bin" / "python"), str(SERVE), module, str(self.port)],
                stdout=log,
                stderr=log,
                env={"PATH": os.environ["PATH"], "HOME": str(self.folder), **environment},
            )
        until(self._listens, self.name, STARTS_WITHIN)

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def text(self) -> str:
        """The end of what it logged."""
        return (self.folder / f"{self.name}.log").read_text()[-4000:]

    def _listens(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.text()
        with contextlib.closing(socket.socket()) as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


class Keystone(Service):
    """Keystone on SQLite; the user ``admin`` has every role of its project."""

    def __init__(self, folder: Path) -> None:
        super().__init__("keystone", folder)
        self._configuration = folder / "keystone.conf"

    def begin(self, endpoints: Mapping[str, str]) -> None:
        """Make its database and start it, with a catalog of these services (type → address)."""
        keys = {name: self.folder / name for name in ("fernet", "credential")}
        for path in keys.values():
            path.mkdir(mode=0o700)
        self._configuration.write_text(
            textwrap.dedent(f"""
            [database]
            connection = sqlite:///{self.folder}/keystone.sqlite
            [fernet_tokens]
            key_repository = {keys["fernet"]}
            [fernet_receipts]
            key_repository = {keys["fernet"]}
            [credential]
            key_repository = {keys["credential"]}
            [identity]
            password_hash_rounds = 4
            """)
        )
        whom = ("--keystone-user", str(os.geteuid()), "--keystone-group", str(os.getegid()))
        self._manage("db_sync")
        self._manage("fernet_setup", *whom)
        self._manage("credential_setup", *whom)
        address = f"{self.url}/v3"
        self._manage(
            *("bootstrap", "--bootstrap-password", PASSWORD, "--bootstrap-region-id", "RegionOne"),
            *("--bootstrap-admin-url", address, "--bootstrap-internal-url", address),
            *("--bootstrap-public-url", address),
        )
        self.start("keystone.wsgi.api", {"OS_KEYSTONE_CONFIG_FILES": str(self._configuration)})
        identity = self.connection("admin", "admin").identity
        for kind, url in endpoints.items():
            service = identity.create_service(name=kind, type=kind)
            identity.create_endpoint(service_id=service.id, interface="public", url=url, region_id="RegionOne")
        identity.create_project(name="service", domain_id="default")

    def add_user(self, name: str, *roles: str) -> None:
        """Make a user that has these roles in the project ``service``."""
        identity = self.connection("admin", "admin").identity
        project = identity.find_project("service")
        user = identity.create_user(name=name, password=PASSWORD, domain_id="default", default_project_id=project.id)
        for role in roles:
            found = identity.find_role(role) or identity.create_role(name=role)
            identity.assign_project_role_to_user(project, user, found)

    def auth(self, user: str, project: str = "service") -> dict[str, str]:
        """Return the options of keystoneauth by which the user gets a token."""
        return {
            "auth_type": "v3password",
            "auth_url": f"{self.url}/v3",
            "username": user,
            "password": PASSWORD,
            "project_name": project,
            "user_domain_name": "Default",
            "project_domain_name": "Default",
            "region_name": "RegionOne",
        }

    def connection(self, user: str, project: str = "service") -> Any:
        """Return openstacksdk's connection of the user."""
        import openstack

        found = self.auth(user, project)
        kind, region = found.pop("auth_type"), found.pop("region_name")
        return openstack.connect(
            load_yaml_config=False, load_envvars=False, auth_type=kind, auth=found, region_name=region
        )

    def _manage(self, *words: str) -> None:
        self.run("keystone-manage", "--config-file", str(self._configuration), *words)


class Neutron(Service):
    """Neutron's API with ML2 and the openvswitch driver; agents are rows with a heartbeat far in the future."""

    def __init__(self, folder: Path, database: str, keystone: Keystone) -> None:
        super().__init__("neutron", folder)
        self._database = database
        self._keystone = keystone

    def begin(self) -> None:
        """Make its database and start it; the user ``neutron`` checks tokens."""
        state = self.folder / "neutron"
        state.mkdir()
        middleware = {name: value for name, value in self._keystone.auth("neutron").items() if name != "auth_type"}
        configuration = state / "neutron.conf"
        configuration.write_text(
            textwrap.dedent(f"""
            [DEFAULT]
            auth_strategy = keystone
            core_plugin = ml2
            service_plugins = qos,segments
            transport_url = fake://
            state_path = {state}
            api_paste_config = {state}/api-paste.ini
            notify_nova_on_port_status_changes = false
            notify_nova_on_port_data_changes = false
            dhcp_agent_notification = false
            rpc_workers = 0
            [database]
            connection = {self._database}
            [oslo_concurrency]
            lock_path = {state}/lock
            [ml2]
            type_drivers = flat
            tenant_network_types =
            mechanism_drivers = openvswitch
            extension_drivers = port_security,qos
            [ml2_type_flat]
            flat_networks = *
            [keystone_authtoken]
            auth_type = v3password
            service_token_roles_required = false
            """)
            + "".join(f"{name} = {value}\n" for name, value in middleware.items())
        )
        shutil.copy(ENVIRONMENT / "etc" / "neutron" / "api-paste.ini", state)
        self.run("neutron-db-manage", "--config-file", str(configuration), "upgrade", "heads")
        self.start("neutron.wsgi.api", {"OS_NEUTRON_CONFIG_DIR": str(state), "OS_NEUTRON_CONFIG_FILES": "neutron.conf"})

    def add_agent(self, host: str, bridges: Mapping[str, str], reported: Sequence[str]) -> None:
        """Let a host have an agent with these bridges (bridge → physical network).

        It reports bandwidth of the ``reported`` ones, and packet rates where it reports any.
        """
        told = {
            "bridge_mappings": {physical: bridge for bridge, physical in bridges.items()},
            "tunnel_types": [],
            "datapath_type": "system",
            "ovs_hybrid_plug": False,
            "integration_bridge": "br-int",
            "ovs_capabilities": {"datapath_types": ["system"], "iface_types": []},
            "resource_provider_bandwidths": {bridge: {"egress": 10000, "ingress": 10000} for bridge in reported},
            "resource_provider_packet_processing_without_direction": {host: {"any": 100}},
            "resource_provider_hypervisors": {**dict.fromkeys(bridges, host), host: host},
        }
        engine = sa.create_engine(self._database)
        with engine.begin() as connection:
            connection.execute(
                sa.text(
                    "INSERT INTO agents (id, agent_type, `binary`, topic, host, admin_state_up, created_at, started_at,"
                    " heartbeat_timestamp, configurations, `load`, resource_versions) VALUES (:id, :kind,"
                    " 'neutron-openvswitch-agent', 'N/A', :host, 1, '2026-01-01', '2026-01-01', '2037-01-01', :told, 0,"
                    " '{}')"
                ),
                {"id": str(uuid.uuid4()), "kind": AGENT_TYPE, "host": host, "told": json.dumps(told)},
            )
        engine.dispose()

    def rows(self, query: sa.TextClause, **values: str) -> Sequence[Any]:
        """Read from its tables."""
        engine = sa.create_engine(self._database)
        try:
            with engine.connect() as connection:
                return connection.execute(query, values).all()
        finally:
            engine.dispose()


@contextlib.contextmanager
def running(folder: Path) -> Iterator[tuple[Keystone, Neutron]]:
    """Run both; Neutron's database is MariaDB's."""
    with mariadb_server.running_server() as database:
        database.create("neutron")
        keystone = Keystone(folder)
        neutron = Neutron(folder, database.url("neutron"), keystone)
        try:
            keystone.begin({"network": neutron.url})
            keystone.add_user("neutron", "service", "admin")
            neutron.begin()
            yield keystone, neutron
        finally:
            for service in (neutron, keystone):
                service.stop()
