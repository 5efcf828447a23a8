"""Why there is no server."""


class UnavailableError(Exception):
    """The server is not here, and this machine cannot have it; the text says why."""


class NotBroughtError(UnavailableError):
    """The server is not here; this machine could have it, but did not download it. The text says why."""


class StartError(Exception):
    """The server did not start or did not stop; the text says what it wrote."""
