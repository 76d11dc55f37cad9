-- What the user droveway needs of Nova's API database. NAME is that database:
--   mariadb NAME < nova-api.sql

GRANT SELECT ON aggregate_hosts TO droveway;
GRANT SELECT ON aggregate_metadata TO droveway;
GRANT SELECT ON aggregates TO droveway;
GRANT SELECT ON cell_mappings TO droveway;
GRANT SELECT ON flavor_extra_specs TO droveway;
GRANT SELECT ON flavor_projects TO droveway;
GRANT SELECT ON flavors TO droveway;
GRANT SELECT ON host_mappings TO droveway;
GRANT SELECT, DELETE ON instance_group_member TO droveway;
GRANT SELECT ON instance_group_policy TO droveway;
GRANT SELECT ON instance_groups TO droveway;
GRANT SELECT, UPDATE ON instance_mappings TO droveway;
GRANT SELECT ON project_user_quotas TO droveway;
GRANT SELECT ON quota_classes TO droveway;
GRANT SELECT ON quotas TO droveway;
GRANT SELECT, UPDATE, DELETE ON request_specs TO droveway;
