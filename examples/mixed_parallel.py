"""Two replicas of a model, each over two devices: every layer on its device, every batch cut in two, gradients summed.

partition examples/mixed_parallel.py --devices CPU:0-3 --strategy mixed --replicas 2 --batch-size 64
python examples/mixed_parallel.py --devices GPU:0-3
"""

import argparse

import digits
import keras
from keras import layers

import partitioner


def build_model():
    model = keras.Sequential(
        [
            keras.Input((784,), name="image"),
            layers.Dense(256, activation="relu", name="hidden_1"),
            layers.Dense(256, activation="relu", name="hidden_2"),
            layers.Dense(10, activation="softmax", name="scores"),
        ],
        name="mixed_parallel",
    )
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def main():
    parser = argparse.ArgumentParser(description="Train two replicas of a model that each span two devices.")
    parser.add_argument("--devices", default="CPU:0-3", help="an even number of them (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()

    devices = list(partitioner.set_up_devices(options.devices))  # before TensorFlow starts
    (x_train, y_train), (x_test, y_test) = digits.load(28, 28, flat=True)

    def new_model():
        keras.utils.set_random_seed(0)
        return build_model()

    alone, model = new_model(), new_model()
    plan = partitioner.plan(
        model,
        devices=devices,
        batch_size=64,
        strategy="mixed",
        replicas=2,
        microbatches=2,
        parallelism=partitioner.Parallelism(schedule="1f1b"),
    )
    print(plan.to_text())
    placed = partitioner.place(model, plan)

    histories = [
        one.fit(x_train, y_train, batch_size=64, epochs=options.epochs, shuffle=False, verbose=0).history["loss"]
        for one in (placed, alone)
    ]
    print("epoch   2 replicas   one device")
    for epoch, (found, expected) in enumerate(zip(*histories, strict=True), start=1):
        print(f"{epoch:5}   {found:10.6f}   {expected:10.6f}")
    print("\nvariable            on")
    copies = placed.program.copies()
    for weight in model.weights:
        homes = [copy.device.split("device:")[-1] for copy in copies[weight.path]]
        print(f"{weight.path.split('/', 1)[-1]:18}  {', '.join(homes)}")
    print(f"\nall copies have the same bits: {placed.replicas_identical()}")
    loss, accuracy = placed.evaluate(x_test, y_test, batch_size=64, verbose=0)
    print(f"test loss {loss:.4f}, accuracy {accuracy:.1%}")


if __name__ == "__main__":
    main()
