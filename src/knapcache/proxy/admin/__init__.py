"""The admin API: authentication, routes, models, audit log; and the files of the dashboard."""
