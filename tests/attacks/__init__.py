"""Attacks on the whole proxy: the bytes a hostile client, front proxy or upstream would send.

How to write one. An attack test sends exact bytes with `connect()` (a `RawClient`) to the proxy of its module, which
runs on a real socket in front of a `RecordingUpstream`. It asserts the status or the close that the caller sees, and
which requests the upstream saw: `upstream.targets` lists them, so a smuggled request or a leaked header is found.
After every test `conftest.py` sends a request on a fresh connection and checks that the upstream got well-formed
requests only. One proxy serves a module; a module with other settings defines the fixture `proxy_settings`. An attack
on memory, or one that stalls the event loop, needs a `ProxyProcess` (fixture `process`) and a `HealthProbe`: a proxy
in this process shares its interpreter with the attacker. Attacks that are variations of one idea are a table of bytes
in `pytest.mark.parametrize`, with an id per row. Bounds on time are generous: the wrong behaviour must be orders of
magnitude off.
"""
