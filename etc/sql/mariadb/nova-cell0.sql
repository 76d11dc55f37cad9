-- What the user droveway needs of the database of Nova's cell0. NAME is that database:
--   mariadb NAME < nova-cell0.sql

GRANT SELECT ON services TO droveway;
