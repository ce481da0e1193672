"""The hardware that steps are judged for: one TOML file a target in ``specs/``, every figure with its source."""

from __future__ import annotations

from hloinspect.hardware.devices import is_named
from hloinspect.hardware.layout import devices_of_host, domain_of
from hloinspect.hardware.limits import stand_in_note, target_limits
from hloinspect.hardware.link import with_link
from hloinspect.hardware.spec import load_target, target_config_text, target_names, target_of_device
from hloinspect.hardware.target import Figure, HostLink, Level, Range, Target

__all__ = [
    "Figure",
    "HostLink",
    "Level",
    "Range",
    "Target",
    "devices_of_host",
    "domain_of",
    "is_named",
    "load_target",
    "stand_in_note",
    "target_config_text",
    "target_limits",
    "target_names",
    "target_of_device",
    "with_link",
]
