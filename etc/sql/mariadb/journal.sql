-- The journal's database, which belongs to the user droveway:
--   mariadb < journal.sql

CREATE DATABASE droveway CHARACTER SET utf8mb4;
GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, DROP, INDEX, REFERENCES ON droveway.* TO droveway;
