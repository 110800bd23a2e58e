"""What everything that is served over HTTP hangs on: listeners, connections, credentials, origins, mounts."""
