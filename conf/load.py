"""From names to one validated `Experiment`: defaults, cluster file, preset, overrides.

Every later layer wins over the earlier ones:

    mempo.config defaults  <-  conf/cluster/<cluster>.yaml   (section `cluster`, and engines)
                           <-  conf/preset/<preset>.yaml     (its `extends:` first)
                           <-  overrides like 'loss.clip=0.3'
                           <-  seed

Whatever is wrong with any of it is a `ConfigError` whose text is one line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from hashlib import sha256 as _sha256
from pathlib import Path

import yaml
from pydantic import ValidationError

from conf.messages import explain, unknown_name, unknown_setting
from conf.text import ConfigError, read_mapping, read_value
from mempo.config import Experiment, Settings
from mempo.config.addresses import redacted

CONF = Path(__file__).parent

# Sections that cannot change a weight or a measurement: two runs which differ only here are the
# same experiment, done elsewhere or recorded elsewhere. The preset's name is a label.
NOT_HASHED = ("preset", "cluster", "tracking")

Layer = dict[str, tuple[object, str]]  # dotted setting -> (value, where it was said)


def presets() -> dict[str, str]:
    """Every preset that ships, by name, with the first comment line of its file."""
    return _described("preset")


def clusters() -> dict[str, str]:
    """Every cluster file that ships, by name, with the first comment line of its file."""
    return _described("cluster")


def load(
    preset: str = "demo",
    *,
    cluster: str = "local",
    overrides: Sequence[str] = (),
    seed: int | None = None,
) -> Experiment:
    """The experiment that a preset, a cluster and overrides describe.

    `preset` and `cluster` are names of files that ship, or paths of YAML files. An override is
    'section.setting=value' with the value in YAML; `seed` wins over everything.

        >>> load("demo", overrides=["loss.clip=0.3", "evaluate.objectives=[2, 4]"]).loss.clip
        0.3

    Raises:
        ConfigError: one line naming the setting, what is wrong with it and the cure.
    """
    layer = _cluster_layer(cluster)
    name, settings = _preset_layer(preset)
    layer["preset"] = (name, "the preset's name")
    layer |= settings
    for override in overrides:
        layer |= _override_layer(override)
    if seed is not None:
        layer["seed"] = (seed, "--seed")
    if "learner.deepspeed" in layer:
        layer["learner.deepspeed"] = _deepspeed(*layer["learner.deepspeed"])
    return _validated(layer)


def flatten(experiment: Experiment) -> dict[str, object]:
    """Every setting by its dotted name, e.g. {'loss.kl': 0.0, ...}; tuples become lists."""
    flat: dict[str, object] = {}
    for key, value in experiment.model_dump(mode="json").items():
        if isinstance(value, dict):
            flat |= {f"{key}.{name}": inner for name, inner in value.items()}
        else:
            flat[key] = value
    return flat


def sha256(experiment: Experiment) -> str:
    """Hash of what decides the results: canonical JSON without `NOT_HASHED`, 64 hex digits."""
    settings = experiment.model_dump(mode="json", exclude=set(NOT_HASHED))
    canonical = json.dumps(settings, sort_keys=True, separators=(",", ":"))
    return _sha256(canonical.encode()).hexdigest()


def to_yaml(experiment: Experiment) -> str:
    """The whole configuration as YAML; `load` of a file with this text gives it back."""
    return yaml.safe_dump(experiment.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _described(folder: str) -> dict[str, str]:
    found = {}
    for path in sorted((CONF / folder).glob("*.yaml")):
        first = path.read_text(encoding="utf-8").splitlines()[0]
        found[path.stem] = first.lstrip("# ").strip()
    return found


def _file(name: str, folder: str, beside: Path | None = None) -> Path:
    """The file that `name` means: one that ships, or a path (from `beside` where given)."""
    shipped = CONF / folder / f"{name}.yaml"
    if "/" not in name and "\\" not in name and shipped.is_file():
        return shipped
    path = (beside or Path()) / Path(name).expanduser()
    if path.suffix in (".yaml", ".yml"):
        if path.is_file():
            return path
        raise ConfigError(f"{folder} file '{path}' does not exist; give the path of a YAML file")
    raise unknown_name(folder, name, _described(folder))


def cluster_from_anywhere(name: str) -> str:
    """A cluster as processes in other folders can name it: a file by its absolute path.

    Raises:
        ConfigError: neither a name of one that ships nor the path of a file that can be used.
    """
    load_cluster(name)
    path = _file(name, "cluster")
    return name if path.parent == CONF / "cluster" else str(path.resolve())


def load_cluster(name: str) -> dict[str, object]:
    """What a cluster file says of the section `cluster`; engines that it names are left out."""
    layer = _cluster_layer(name)
    return {
        setting.removeprefix("cluster."): value
        for setting, (value, _) in layer.items()
        if setting.startswith("cluster.")
    }


def _cluster_layer(cluster: str) -> Layer:
    """Its settings, and those of other sections that it names, such as the engines there."""
    path = _file(cluster, "cluster")
    data = read_mapping(path)
    sections = {key: data.pop(key) for key in list(data) if isinstance(data[key], Mapping)}
    return _layer({**sections, "cluster": data}, f"cluster file {path.name}")


def _deepspeed(value: object, where: str) -> tuple[object, str]:
    """The contents of the JSON file that a name or a path means; JSON as it is."""
    if not isinstance(value, str) or value.lstrip().startswith("{"):
        return value, where
    shipped = CONF / "deepspeed" / f"{value}.json"
    file = shipped if "/" not in value and shipped.is_file() else Path(value).expanduser()
    if file.suffix == ".json" and file.is_file():
        return " ".join(file.read_text(encoding="utf-8").split()), where
    return value, where


def _preset_layer(preset: str) -> tuple[str, Layer]:
    """The preset's name and its settings, over those of the presets that it extends."""
    path = _file(preset, "preset")
    name = path.stem
    chain: list[tuple[Path, Mapping[str, object]]] = []
    while True:
        if any(path.resolve() == seen.resolve() for seen, _ in chain):
            loop = " -> ".join([*(seen.stem for seen, _ in chain), path.stem])
            raise ConfigError(f"setting 'extends' goes round in a circle: {loop}; drop one of them")
        data = read_mapping(path)
        parent = data.pop("extends", None)
        chain.append((path, data))
        if parent is None:
            break
        if not isinstance(parent, str):
            raise ConfigError(
                f"setting 'extends' = {parent!r} (preset {path.name}): must be a preset's name"
            )
        path = _file(parent, "preset", beside=path.parent)
    layer: Layer = {}
    for file, data in reversed(chain):
        # A parent's own label must not become the name of what extends it.
        if file is not chain[0][0]:
            data = {key: value for key, value in data.items() if key != "preset"}
        layer |= _layer(data, f"preset {file.name}")
    return name, layer


def _override_layer(override: str) -> Layer:
    dotted, equals, text = override.partition("=")
    dotted = dotted.strip()
    if not equals or not dotted:
        raise ConfigError(f"override '{redacted(override)}' must look like section.setting=value")
    where = f"override '{redacted(override)}'"
    if dotted == "preset":
        raise ConfigError(f"{where}: a preset is chosen with --preset {text}, not with --set")
    _check_known(dotted, where)
    value = text if _annotation(dotted) is str else read_value(text, where)
    return {dotted: (value, where)}


def _layer(data: Mapping[str, object], where: str) -> Layer:
    """A nested mapping as dotted settings, each of them known."""
    layer: Layer = {}
    for key, value in data.items():
        if _section(key) is None:
            _check_known(key, where)
            layer[key] = (value, where)
            continue
        if value is None:  # a section whose settings are all commented out
            continue
        if not isinstance(value, Mapping):
            raise ConfigError(
                f"setting '{key}' ({where}): is a section; write its settings below it"
            )
        for name, inner in value.items():
            _check_known(f"{key}.{name}", where)
            layer[f"{key}.{name}"] = (inner, where)
    return layer


def _section(key: str) -> type[Settings] | None:
    field = Experiment.model_fields.get(key)
    annotation = field.annotation if field else None
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return annotation
    return None


def setting_names() -> list[str]:
    """Every setting by its dotted name, in the order of `mempo.config`."""
    names: list[str] = []
    for key in Experiment.model_fields:
        section = _section(key)
        names += [f"{key}.{name}" for name in section.model_fields] if section else [key]
    return names


def setting_type(dotted: str) -> object:
    """The type of a setting that exists: `int`, `float`, `str`, `bool`, a `Literal`, a tuple."""
    return _annotation(dotted)


def known_setting(dotted: str, where: str) -> None:
    """Raise ConfigError, with the closest one that exists, if there is no such setting."""
    _check_known(dotted, where)


def _check_known(dotted: str, where: str) -> None:
    names = setting_names()
    if dotted in names:
        return
    if _section(dotted) is not None:
        inside = ", ".join(name for name in names if name.startswith(f"{dotted}."))
        raise ConfigError(f"setting '{dotted}' ({where}): is a section; set one of {inside}")
    raise unknown_setting(dotted, where, names)


def _annotation(dotted: str) -> object:
    key, _, name = dotted.partition(".")
    section = _section(key)
    return (section or Experiment).model_fields[name or key].annotation


def _validated(layer: Layer) -> Experiment:
    nested: dict[str, object] = {}
    for dotted, (value, where) in layer.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"setting '{dotted}' = {value} ({where}): must be a finite number")
        if _annotation(dotted) is str and type(value) in (int, float):
            value = str(value)  # `history: 1` reads as a number and means the text '1'
        key, _, name = dotted.partition(".")
        if name:
            section = nested.setdefault(key, {})
            assert isinstance(section, dict)
            section[name] = value
        else:
            nested[key] = value
    try:
        # JSON in strict mode: lists become tuples, while 'yes' for a number stays an error.
        return Experiment.model_validate_json(json.dumps(nested), strict=True)
    except ValidationError as error:
        raise explain(error, {dotted: where for dotted, (_, where) in layer.items()}) from None
