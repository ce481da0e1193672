"""Give hloinspect the step of plain_train.py: the jitted function and its arguments, as the script makes them.

hloinspect inspect examples/plain_step.py:step --target h100 --devices 8
"""

import plain_train


def step():
    return plain_train.train_step, plain_train.create_state(), next(plain_train.batches())
