"""HTTP requests: protocol, application, access control, cacheable endpoints, passthrough."""
