"""Choice of the destination: requests, filters, weighers and alternates."""
