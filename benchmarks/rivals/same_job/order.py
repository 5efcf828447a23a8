"""What all programs do with the parts of an order."""


def pack(item: str) -> None:
    """Pack an item; there is no sofa."""
    if item == "sofa":
        raise LookupError("no sofa is left")
    print("packed", item, flush=True)
