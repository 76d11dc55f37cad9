"""The steps that write a server's rows, and what tells from the rows that somebody else has written them."""
