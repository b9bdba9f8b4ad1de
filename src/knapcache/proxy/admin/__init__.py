"""For those who run it: the admin API and its door, and the pages of the dashboard."""
