"""A real Keystone, Placement and Neutron as plain processes, from the virtual environment that tools/test makes."""

from __future__ import annotations

import contextlib
import dataclasses
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

from droveway.lab.serve_ports import free_port

ROOT: Final = Path(__file__).parents[3]
ENVIRONMENT: Final = ROOT / ".venv" / "openstack"
SCRIPTS: Final = ROOT / "tests" / "data" / "openstack"

PASSWORD: Final = "canary-openstack-4c1d"
STARTS_WITHIN: Final = 400.0
AGENT_TYPE: Final = "Open vSwitch agent"
HEARD: Final = "2037-01-01"
"""When an agent was heard that is there for as long as a test lasts."""
AWAY: Final = "2020-01-01"
"""When one was heard last that is away."""

_WHOLE: Final = {"allocation_ratio": 1.0, "min_unit": 1, "step_size": 1, "reserved": 0}
"""The inventories' other keys, as an agent tells them by default."""


class Service:
    """One process that serves a WSGI application."""

    def __init__(self, name: str, folder: Path, address: str = "127.0.0.1", port: int = 0) -> None:
        """``address`` and ``port``: where it listens; port 0 stands for a free one."""
        self.name = name
        self.folder = folder
        self.address = address
        self.port = port or free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://{self.address}:{self.port}"

    def run(self, program: str, *words: str) -> None:
        """Run one of the environment's programs to its end."""
        done = subprocess.run([str(ENVIRONMENT / "bin" / program), *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self, module: str, environment: Mapping[str, str]) -> None:
        """Start it; it listens when this returns."""
        with (self.folder / f"{self.name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(ENVIRONMENT / "bin" / "python"), str(SCRIPTS / "serve.py"), module, self.address, str(self.port)],
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
            return probe.connect_ex((self.address, self.port)) == 0


class Keystone(Service):
    """Keystone on SQLite; the user ``admin`` has every role of its project."""

    def __init__(self, folder: Path, believed_for: int, address: str = "127.0.0.1", port: int = 0) -> None:
        """``believed_for``: the seconds for which services take a token that they have asked after; -1 for none."""
        super().__init__("keystone", folder, address, port)
        self.believed_for = believed_for
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
            [cache]
            enabled = true
            backend = dogpile.cache.memory
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
        for kind, url in endpoints.items():
            self.add_endpoint(kind, url)
        self.connection("admin", "admin").identity.create_project(name="service", domain_id="default")

    def add_endpoint(self, kind: str, url: str) -> None:
        """Put a service of this type into the catalog."""
        identity = self.connection("admin", "admin").identity
        service = identity.create_service(name=kind, type=kind)
        identity.create_endpoint(service_id=service.id, interface="public", url=url, region_id="RegionOne")

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

    def section(self, group: str, user: str) -> str:
        """Return the group of a configuration file by which the user gets a token."""
        return f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in self.auth(user).items())

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


class Stored(Service):
    """A service whose database is MariaDB's; its user, who checks tokens, has its name."""

    def __init__(self, name: str, folder: Path, database: str, keystone: Keystone) -> None:
        super().__init__(name, folder)
        self.state = folder / name
        self.configuration = self.state / f"{name}.conf"
        self.keystone = keystone
        self.database = database

    def configure(self, text: str) -> None:
        """Write its configuration, with how it checks tokens."""
        self.state.mkdir()
        options = f"service_token_roles_required = false\ntoken_cache_time = {self.keystone.believed_for}\n"
        tokens = self.keystone.section("keystone_authtoken", self.name) + options
        self.configuration.write_text(textwrap.dedent(text) + tokens)

    def rows(self, query: sa.TextClause, **values: str) -> Sequence[Any]:
        """Read from its tables."""
        with self._connected() as connection:
            return connection.execute(query, values).all()

    def write(self, statement: sa.TextClause, **values: str) -> None:
        """Write into its tables, as an earlier release left them."""
        with self._connected() as connection:
            connection.execute(statement, values)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sa.Connection]:
        engine = sa.create_engine(self.database)
        try:
            with engine.begin() as connection:
                yield connection
        finally:
            engine.dispose()


class Placement(Stored):
    """Placement's API, which knows a user by the token of Keystone."""

    def begin(self) -> None:
        """Start it; it makes its tables by itself."""
        self.configure(f"""
            [api]
            auth_strategy = keystone
            [placement_database]
            connection = {self.database}
            sync_on_startup = true
        """)
        self.start("placement.wsgi.api", {"OS_PLACEMENT_CONFIG_DIR": str(self.state)})


class Neutron(Stored):
    """Neutron's API with ML2 and the openvswitch driver; agents are rows with a heartbeat far in the future."""

    def begin(self) -> None:
        """Make its tables and start it; the user ``neutron`` writes allocations to Placement too."""
        self.configure(f"""
            [DEFAULT]
            auth_strategy = keystone
            core_plugin = ml2
            service_plugins = qos,segments
            transport_url = fake://
            state_path = {self.state}
            api_paste_config = {self.state}/api-paste.ini
            notify_nova_on_port_status_changes = false
            notify_nova_on_port_data_changes = false
            dhcp_agent_notification = false
            rpc_workers = 0
            [database]
            connection = {self.database}
            [oslo_concurrency]
            lock_path = {self.state}/lock
            [ml2]
            type_drivers = flat
            tenant_network_types =
            mechanism_drivers = openvswitch
            extension_drivers = port_security,qos
            [ml2_type_flat]
            flat_networks = *
        """)
        with self.configuration.open("a") as file:
            file.write(self.keystone.section("placement", self.name))
        shutil.copy(ENVIRONMENT / "etc" / "neutron" / "api-paste.ini", self.state)
        self.run("neutron-db-manage", "--config-file", str(self.configuration), "upgrade", "heads")
        self.start(
            "neutron.wsgi.api",
            {"OS_NEUTRON_CONFIG_DIR": str(self.state), "OS_NEUTRON_CONFIG_FILES": self.configuration.name},
        )

    def add_agent(
        self, host: str, bridges: Mapping[str, str], bandwidths: Mapping[str, Mapping[str, int]], *, kpps: int
    ) -> None:
        """Let a host have an agent with these bridges (bridge → physical network).

        ``bandwidths``: bridge → direction → kbit/s of those that it reports; ``kpps``: 1,000 packets a second.
        """
        told = {
            "bridge_mappings": {physical: bridge for bridge, physical in bridges.items()},
            "tunnel_types": [],
            "datapath_type": "system",
            "ovs_hybrid_plug": False,
            "integration_bridge": "br-int",
            "ovs_capabilities": {"datapath_types": ["system"], "iface_types": []},
            "resource_provider_bandwidths": bandwidths,
            "resource_provider_inventory_defaults": _WHOLE,
            "resource_provider_packet_processing_without_direction": {host: {"any": kpps}},
            "resource_provider_packet_processing_inventory_defaults": _WHOLE,
            "resource_provider_hypervisors": {**dict.fromkeys(bridges, host), host: host},
        }
        with self._connected() as connection:
            connection.execute(
                sa.text(
                    "INSERT INTO agents (id, agent_type, `binary`, topic, host, admin_state_up, created_at, started_at,"
                    " heartbeat_timestamp, configurations, `load`, resource_versions) VALUES (:id, :kind,"
                    " 'neutron-openvswitch-agent', 'N/A', :host, 1, '2026-01-01', '2026-01-01', :heard, :told, 0,"
                    " '{}')"
                ),
                {
                    "id": str(uuid.uuid4()),
                    "kind": AGENT_TYPE,
                    "host": host,
                    "heard": HEARD,
                    "told": json.dumps(told),
                },
            )

    def hear_agent(self, host: str, at: str) -> None:
        """Let the host's agent have been heard last then: `HEARD` or `AWAY`."""
        with self._connected() as connection:
            connection.execute(
                sa.text("UPDATE agents SET heartbeat_timestamp = :at WHERE host = :host"), {"at": at, "host": host}
            )

    def report(self, host: str) -> None:
        """Write to Placement what the host's agent has told, below the host's provider, by Neutron's own code."""
        self.run("python", str(SCRIPTS / "report.py"), str(self.configuration), host)


@dataclasses.dataclass(frozen=True)
class OpenStack:
    """The three, running, and the server of the databases of the last two."""

    databases: mariadb_server.Server
    keystone: Keystone
    placement: Placement
    neutron: Neutron


@contextlib.contextmanager
def running(folder: Path, *, believed_for: int = 300, address: str = "127.0.0.1", port: int = 0) -> Iterator[OpenStack]:
    """Run all three; the databases of Placement and Neutron are MariaDB's.

    ``believed_for``: as of `Keystone`; 300 seconds are the services' own default.  ``address`` and ``port``: where
    Keystone listens.
    """
    with mariadb_server.running_server() as database:
        database.create("placement", "neutron")
        keystone = Keystone(folder, believed_for, address, port)
        placement = Placement("placement", folder, database.url("placement"), keystone)
        neutron = Neutron("neutron", folder, database.url("neutron"), keystone)
        try:
            keystone.begin({"network": neutron.url, "placement": placement.url})
            for service in (placement, neutron):
                keystone.add_user(service.name, "service", "admin")
                service.begin()
            yield OpenStack(database, keystone, placement, neutron)
        finally:
            for started in (neutron, placement, keystone):
                started.stop()
