"""What is known of a query: how often it comes, what it costs, and how sure that is."""
