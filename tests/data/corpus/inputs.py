"""The corpus's inputs, made from the manifest: the same bytes on every machine.

Only ``Generator.integers`` is drawn from, with a PCG64 of its own for every buffer, and floats are put
together from those integers by plain IEEE operations. The recording keeps a SHA-256 of each input all the
same, so that a NumPy that draws differently is noticed rather than taken for a wrong kernel.
"""

import hashlib
import struct
from typing import Any

import numpy as np

#: NumPy has no bfloat16: it travels as the bits, and ``rules.py`` knows how to compare it.
STORAGE = {"bfloat16": "uint16"}
# Zeros, least and greatest denormal, least normal, 1 and neighbours, odd halves, the greatest, infinity, NaN.
SPECIAL_BITS = {
    "float16": "0 1 3ff 400 3bff 3c00 3c01 3800 3e00 4100 7bff 7c00 7e00",
    "bfloat16": "0 1 7f 80 3f7f 3f80 3f81 3f00 3fc0 4020 7f7f 7f80 7fc0",
}
# The same, and the edges of the integers and of the narrower types that such a float may be converted to.
SPECIAL_FLOATS = {
    "float32": "0 1e-45 1.1754942e-38 1.1754944e-38 0.99999994 1 1.0000001 0.5 1.5 2.5 127.5 255.5 32767.5"
    " 65504 8388607.5 2147483520 2147483648 4294967296 9.2233715e18 1.8446744e19 3.4028235e38 inf nan",
    "float64": "0 5e-324 2.2250738585072009e-308 2.2250738585072014e-308 1.401298464324817e-45"
    " 7.006492321624085e-46 0.9999999999999999 1 1.0000000000000002 0.5 1.5 2.5 65519.99 65520 2147483647.5"
    " 4294967295.5 4503599627370497.5 9.223372036854776e18 1.8446744073709552e19 3.4028235677973366e38"
    " 3.4028234663852886e38 1.7976931348623157e308 inf nan",
}


def storage(dtype: str) -> np.dtype:
    """The NumPy type that holds a manifest's type."""
    return np.dtype(STORAGE.get(dtype, dtype))


def special_values(dtype: str) -> np.ndarray:
    """The values worth meeting each other, both signs of each."""
    if dtype in SPECIAL_BITS:
        bits = np.array([int(word, 16) for word in SPECIAL_BITS[dtype].split()], np.uint16)
        return np.concatenate([bits, bits | np.uint16(0x8000)]).view(storage(dtype))
    if dtype in SPECIAL_FLOATS:
        values = np.array([float(word) for word in SPECIAL_FLOATS[dtype].split()], dtype)
        return np.concatenate([values, -values])
    info = np.iinfo(dtype)
    size = info.bits
    words = [0, 1, 2, 3, 5, 7, size - 1, size, 1 << (size // 2), (1 << (size - 1)) - 1, 1 << (size - 1)]
    words += [(1 << (size - 1)) + 1, -1, -2, -7, 0x55555555]
    return np.array([word % (1 << size) for word in words], f"uint{size}").view(dtype)


def random_bits(generator: np.random.Generator, dtype: str, count: int) -> np.ndarray:
    """Every pattern of bits alike."""
    size = storage(dtype).itemsize
    return generator.integers(0, 256, count * size, np.uint8).view(storage(dtype))


def uniform(generator: np.random.Generator, dtype: str, count: int, low: float, high: float) -> np.ndarray:
    """Floats between two limits: 24 random bits, scaled in double and rounded once."""
    unit = generator.integers(0, 1 << 24, count).astype(np.float64) / (1 << 24)
    return (low + unit * (high - low)).astype(dtype)


def make_crossed(generator: np.random.Generator, dtype: str, count: int, spec: dict[str, Any]) -> np.ndarray:
    """Special values (or one ``side`` of all their pairs), then numbers between limits, or any bits."""
    values = special_values(dtype)
    if "side" in spec:
        pairs = np.repeat(values, len(values)) if spec["side"] == "left" else np.tile(values, len(values))
        # A stride coprime to the number of pairs meets all of them in an order where every prefix is mixed.
        values = pairs[np.arange(len(pairs)) * 7919 % len(pairs)]
    values = values[: spec.get("most", count)][:count]
    rest = count - len(values)
    if "low" in spec:
        drawn = draw_between(generator, dtype, rest, spec)
    else:
        drawn = random_bits(generator, dtype, rest)
    return np.concatenate([values, drawn])


def draw_between(generator: np.random.Generator, dtype: str, count: int, spec: dict[str, Any]) -> np.ndarray:
    """Floats between limits; or integers, ``high`` included, times ``scale`` if there is one."""
    if np.dtype(storage(dtype)).kind == "f" and "scale" not in spec:
        return uniform(generator, dtype, count, spec["low"], spec["high"])
    kind = np.uint64 if dtype == "uint64" else np.int64
    drawn = generator.integers(spec["low"], spec["high"], count, kind, endpoint=True)
    return (drawn * spec["scale"] if "scale" in spec else drawn).astype(storage(dtype))


def fill(spec: dict[str, Any]) -> np.ndarray:
    """The contents of one buffer, from its entry in the manifest (README.md lists the kinds)."""
    dtype, shape, how = spec["dtype"], spec["shape"], spec["fill"]
    count = int(np.prod(shape))
    generator = np.random.Generator(np.random.PCG64(how.get("seed", 0)))
    kind = how["kind"]
    if kind == "constant":
        values = np.full(count, how["value"], storage(dtype))
    elif kind == "untouched":
        values = np.full(count * storage(dtype).itemsize, 0xA5, np.uint8).view(storage(dtype))
    elif kind == "range":
        values = (np.arange(count) * how.get("step", 1) + how.get("start", 0)).astype(storage(dtype))
    elif kind == "values":
        values = np.resize(np.array(how["values"], storage(dtype)), count)
    elif kind == "between":
        values = draw_between(generator, dtype, count, how)
    elif kind == "bits":
        values = random_bits(generator, dtype, count)
    elif kind == "specials":
        values = make_crossed(generator, dtype, count, how)
    else:
        raise ValueError(f"no such fill: {kind}")
    return np.ascontiguousarray(values).reshape(shape)


def contents(entry: dict[str, Any]) -> dict[str, np.ndarray]:
    """The first contents of every buffer, array and written global of a kernel, by name."""
    objects = {**entry["buffers"], **entry.get("arrays", {}), **entry.get("globals", {})}
    return {name: fill(spec) for name, spec in objects.items() if "fill" in spec}


def digest(values: np.ndarray) -> str:
    """The SHA-256 of a buffer's bytes."""
    return hashlib.sha256(values.tobytes()).hexdigest()


CODES = {
    "bool": "<?",
    "int8": "<b",
    "uint8": "<B",
    "int16": "<h",
    "uint16": "<H",
    "int32": "<i",
    "uint32": "<I",
    "int64": "<q",
    "uint64": "<Q",
    "float32": "<f",
    "float64": "<d",
}


ARRAY_FORMATS = {
    "uint8": 0x01, "uint16": 0x02, "uint32": 0x03, "int8": 0x08, "int16": 0x09, "int32": 0x0A, "float16": 0x10,
    "float32": 0x20,
}  # fmt: skip
"""CUarray_format by the type of an array's channels."""


MAP_TYPES = {
    "uint8": 0, "uint16": 1, "uint32": 2, "int32": 3, "uint64": 4, "int64": 5, "float16": 6, "float32": 7,
    "float64": 8, "bfloat16": 9, "float32_ftz": 10, "tfloat32": 11, "tfloat32_ftz": 12,
}  # fmt: skip
"""CUtensorMapDataType by the type of a tensor map's elements."""


def tensor_map(spec: dict[str, Any], addresses: dict[str, int]) -> dict[str, Any]:
    """The arguments of cuTensorMapEncodeTiled, or with corners of cuTensorMapEncodeIm2col, by their names there."""
    dimensions = spec["dimensions"]
    arrays = {
        "tensorDataType": MAP_TYPES[spec["type"]],
        "tensorRank": len(dimensions),
        "globalAddress": addresses[spec["buffer"]],
        "globalDim": dimensions,
        "globalStrides": spec["strides"],
    }
    if "lower_corner" in spec:
        arrays |= {"pixelBoxLowerCorner": spec["lower_corner"], "pixelBoxUpperCorner": spec["upper_corner"]}
        arrays |= {"channelsPerPixel": spec["channels"], "pixelsPerColumn": spec["pixels"]}
    else:
        arrays["boxDim"] = spec["box"]
    arrays["elementStrides"] = spec.get("element_strides", [1] * len(dimensions))
    return arrays | {
        "interleave": 0,
        "swizzle": spec.get("swizzle", 0),
        "l2Promotion": 0,
        "oobFill": spec.get("fill", 0),
    }


def argument(spec: dict[str, Any], addresses: dict[str, int], maps: dict[str, bytes]) -> bytes:
    """The bytes of one kernel parameter, given where the buffers are, the handles of objects, and tensor maps."""
    if "map" in spec:
        return maps[spec["map"]]
    if "buffer" in spec or "object" in spec:
        return struct.pack("<Q", addresses[spec["buffer"] if "buffer" in spec else spec["object"]])
    if "scalar" in spec:
        return struct.pack(CODES[spec["scalar"]], spec["value"])
    raw = bytearray.fromhex(spec["bytes"])
    for offset, name in spec.get("pointers", {}).items():
        struct.pack_into("<Q", raw, int(offset), addresses[name])
    return bytes(raw)


def arguments(entry: dict[str, Any], addresses: dict[str, int], maps: dict[str, bytes] | None = None) -> list[bytes]:
    """The bytes of every parameter of a kernel, in order."""
    return [argument(spec, addresses, maps or {}) for spec in entry["args"]]


def outputs(entry: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The buffers, arrays and globals whose contents after the launch are compared, with their specification."""
    objects = {**entry["buffers"], **entry.get("arrays", {}), **entry.get("globals", {})}
    return {name: spec for name, spec in objects.items() if "compare" in spec}
