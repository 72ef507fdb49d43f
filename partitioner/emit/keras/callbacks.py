"""The callbacks for `fit` of a placed model."""

from partitioner.emit.keras.step_report import StepReport as StepReport
from partitioner.emit.keras.tensorboard_report import TensorBoardReport as TensorBoardReport
