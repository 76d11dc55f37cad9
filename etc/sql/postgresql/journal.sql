-- The journal's database, which belongs to the user droveway:
--   psql -d postgres -f journal.sql

CREATE DATABASE droveway OWNER droveway ENCODING 'UTF8' TEMPLATE template0;
REVOKE ALL ON DATABASE droveway FROM PUBLIC;
