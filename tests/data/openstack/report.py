"""report.py CONF HOST: writes to Placement what a host's agent has told Neutron, as Neutron's own plugin would.

That plugin hears it in the agent's heartbeat. The agent is here a row, whose heartbeat never comes.
"""

import json
import sys

import sqlalchemy as sa
from keystoneauth1 import loading
from neutron.agent.common.placement_report import PlacementState
from neutron.conf import common
from neutron.conf.plugins.ml2 import config as ml2
from neutron.plugins.ml2.drivers.openvswitch.mech_driver.mech_openvswitch import OpenvswitchMechanismDriver
from neutron_lib.api.definitions import portbindings
from neutron_lib.placement.client import PlacementAPIClient
from oslo_config import cfg
from oslo_db import options

configuration, host = sys.argv[1:]
options.set_defaults(cfg.CONF)
ml2.register_ml2_plugin_opts()
common.register_placement_opts()
loading.register_auth_conf_options(cfg.CONF, "placement")
loading.register_session_conf_options(cfg.CONF, "placement")
cfg.CONF([], project="neutron", default_config_files=[configuration])

with sa.create_engine(cfg.CONF.database.connection).connect() as connection:
    query = sa.text("SELECT agent_type, configurations FROM agents WHERE host = :host")
    kind, text = connection.execute(query, {"host": host}).one()
told = json.loads(text)

client = PlacementAPIClient(cfg.CONF)
root = client.list_resource_providers(name=host)["resource_providers"][0]["uuid"]
state = PlacementState(
    rp_bandwidths=told["resource_provider_bandwidths"],
    rp_inventory_defaults=told["resource_provider_inventory_defaults"],
    rp_pkt_processing=told["resource_provider_packet_processing_without_direction"],
    rp_pkt_processing_inventory_defaults=told["resource_provider_packet_processing_inventory_defaults"],
    driver_uuid_namespace=OpenvswitchMechanismDriver.resource_provider_uuid5_namespace,
    agent_type=kind,
    hypervisor_rps={
        device: {"name": name, "uuid": root} for device, name in told["resource_provider_hypervisors"].items()
    },
    device_mappings={physical: [bridge] for physical, bridge in told["bridge_mappings"].items()},
    supported_vnic_types=[portbindings.VNIC_NORMAL],
    client=client,
)
for call in state.deferred_sync():
    call.execute()
