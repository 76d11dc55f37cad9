"""The steps that write a server's rows, each of which first compares whether somebody else has changed them."""
