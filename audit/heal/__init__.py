"""Plans which findings of an audit can be mended without an operator, and mends them."""
