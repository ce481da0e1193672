"""Prediction: the schedule of a module on a target, with a range and a verdict for every transfer."""

from __future__ import annotations

from hloinspect.predict.prediction import Prediction, TransferPrediction, predict

__all__ = ["Prediction", "TransferPrediction", "predict"]
