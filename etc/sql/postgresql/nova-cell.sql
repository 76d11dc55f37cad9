-- What the user droveway needs of the database of each of Nova's cells. NAME is that database:
--   psql -d NAME -f nova-cell.sql

GRANT SELECT, INSERT, UPDATE, DELETE ON block_device_mapping TO droveway;
GRANT SELECT, UPDATE ON compute_nodes TO droveway;
GRANT SELECT, DELETE ON console_auth_tokens TO droveway;
GRANT SELECT ON console_pools TO droveway;
GRANT SELECT, DELETE ON consoles TO droveway;
GRANT SELECT ON fixed_ips TO droveway;
GRANT SELECT, INSERT, UPDATE, DELETE ON instance_actions TO droveway;
GRANT SELECT, INSERT, UPDATE, DELETE ON instance_actions_events TO droveway;
GRANT SELECT, INSERT, UPDATE, DELETE ON instance_extra TO droveway;
GRANT SELECT, INSERT, UPDATE, DELETE ON instance_faults TO droveway;
GRANT SELECT, INSERT, UPDATE, DELETE ON instance_id_mappings TO droveway;
GRANT SELECT, INSERT, UPDATE, DELETE ON instance_info_caches TO droveway;
GRANT SELECT, INSERT, UPDATE, DELETE ON instance_metadata TO droveway;
GRANT SELECT, INSERT, UPDATE, DELETE ON instance_system_metadata TO droveway;
GRANT SELECT, INSERT, UPDATE, DELETE ON instances TO droveway;
GRANT SELECT, INSERT, UPDATE, DELETE ON migrations TO droveway;
GRANT SELECT ON pci_devices TO droveway;
GRANT SELECT, INSERT, UPDATE, DELETE ON security_group_instance_association TO droveway;
GRANT SELECT, INSERT ON security_groups TO droveway;
GRANT SELECT, UPDATE ON services TO droveway;
GRANT SELECT ON share_mapping TO droveway;
GRANT SELECT, INSERT, DELETE ON tags TO droveway;
GRANT SELECT, INSERT, UPDATE, DELETE ON virtual_interfaces TO droveway;

-- The ids of new rows.
GRANT USAGE ON SEQUENCE block_device_mapping_id_seq TO droveway;
GRANT USAGE ON SEQUENCE instance_actions_id_seq TO droveway;
GRANT USAGE ON SEQUENCE instance_actions_events_id_seq TO droveway;
GRANT USAGE ON SEQUENCE instance_extra_id_seq TO droveway;
GRANT USAGE ON SEQUENCE instance_faults_id_seq TO droveway;
GRANT USAGE ON SEQUENCE instance_id_mappings_id_seq TO droveway;
GRANT USAGE ON SEQUENCE instance_info_caches_id_seq TO droveway;
GRANT USAGE ON SEQUENCE instance_metadata_id_seq TO droveway;
GRANT USAGE ON SEQUENCE instance_system_metadata_id_seq TO droveway;
GRANT USAGE ON SEQUENCE instances_id_seq TO droveway;
GRANT USAGE ON SEQUENCE migrations_id_seq TO droveway;
GRANT USAGE ON SEQUENCE security_group_instance_association_id_seq TO droveway;
GRANT USAGE ON SEQUENCE security_groups_id_seq TO droveway;
GRANT USAGE ON SEQUENCE virtual_interfaces_id_seq TO droveway;
