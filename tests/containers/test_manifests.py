"""docs/samples/kubernetes.yaml against the OpenAPI schemas of the Kubernetes API, of which tests/data has a part."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from .podman import ROOT, SAMPLES

SCHEMAS = json.loads((ROOT / "tests/data/kubernetes-1.34-schemas.json").read_text())["$defs"]
KINDS = {
    "Namespace": "io.k8s.api.core.v1.Namespace",
    "ConfigMap": "io.k8s.api.core.v1.ConfigMap",
    "Pod": "io.k8s.api.core.v1.Pod",
    "DaemonSet": "io.k8s.api.apps.v1.DaemonSet",
}
TYPES = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool}
"""Types of JSON as Python reads them; true and false are not integers."""


def find_errors(value: Any, schema: dict[str, Any], place: str) -> Iterator[str]:
    """Yield what of a value does not fit a schema: unknown keys, as with kubectl's strict validation, too."""
    if reference := schema.get("$ref"):
        schema = SCHEMAS[reference.rpartition("/")[2]]
    names = schema.get("type", [])
    allowed = tuple(TYPES[name] for name in ([names] if isinstance(names, str) else names) if name != "null")
    if alternatives := schema.get("oneOf"):
        if all(list(find_errors(value, alternative, place)) for alternative in alternatives):
            yield f"{place} fits none of {alternatives}"
    elif allowed and (not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed)):
        yield f"{place} is {value!r}, not {names}"
    elif "enum" in schema and value not in schema["enum"]:
        yield f"{place} is {value!r}, not one of {schema['enum']}"
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from find_errors(item, schema.get("items", {}), f"{place}[{number}]")
    elif isinstance(value, dict):
        yield from (f"{place} has no {key}" for key in schema.get("required", []) if key not in value)
        properties, others = schema.get("properties", {}), schema.get("additionalProperties", {})
        for key, item in value.items():
            if key not in properties and (properties or others is False):
                yield f"{place}.{key} is unknown"
            else:
                yield from find_errors(item, properties.get(key, others or {}), f"{place}.{key}")


@pytest.fixture(scope="module")
def objects() -> dict[str, Any]:
    """The objects of the manifest by kind."""
    documents = list(yaml.safe_load_all((SAMPLES / "kubernetes.yaml").read_text()))
    return {document["kind"]: document for document in documents}


def test_the_manifests_fit_the_schemas_of_the_api(objects: dict[str, Any]) -> None:
    assert objects.keys() == KINDS.keys()
    for kind, document in objects.items():
        assert list(find_errors(document, {"$ref": KINDS[kind]}, kind)) == []


@pytest.mark.parametrize(
    ("path", "value", "error"),
    [
        (("spec", "template", "spec", "hostPid"), True, "DaemonSet.spec.template.spec.hostPid is unknown"),
        (("spec", "template", "spec", "hostPID"), "yes", "DaemonSet.spec.template.spec.hostPID is 'yes', not"),
        (("kind",), "Pod", "DaemonSet.kind is 'Pod', not one of ['DaemonSet']"),
        (("spec", "template", "spec", "containers"), [{}], "DaemonSet.spec.template.spec.containers[0] has no name"),
    ],
)
def test_errors_are_found(objects: dict[str, Any], path: tuple[str, ...], value: object, error: str) -> None:
    document = json.loads(json.dumps(objects["DaemonSet"]))
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    assert [line[: len(error)] for line in find_errors(document, {"$ref": KINDS["DaemonSet"]}, "DaemonSet")] == [
        error
    ]


def test_the_objects_belong_together(objects: dict[str, Any]) -> None:
    template = objects["DaemonSet"]["spec"]["template"]
    assert objects["DaemonSet"]["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
    (container,) = template["spec"]["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes.keys()
    assert volumes["configuration"]["configMap"]["name"] == objects["ConfigMap"]["metadata"]["name"]
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    (file,) = objects["ConfigMap"]["data"]
    path = f"{mounted['configuration']}/{file}"
    assert path in container["command"]
    assert f"--expect={path}" in container["readinessProbe"]["exec"]["command"]
    (volume,) = objects["Pod"]["spec"]["volumes"]
    assert Path(volume["hostPath"]["path"]).is_relative_to(volumes["pipes"]["hostPath"]["path"])
