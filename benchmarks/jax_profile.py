"""Record small JAX profiles: a matmul and a tiny transformer, 20 steps, with and without graphs.

python benchmarks/jax_profile.py OUT    (on a GPU; writes OUT/graphs and OUT/kernels)
"""

import os
import subprocess
import sys
from pathlib import Path

FLAGS = {"graphs": "", "kernels": "--xla_gpu_enable_command_buffer="}
LAYERS, WIDTH, HEADS, LENGTH = 2, 256, 4, 128


def record(out: str) -> None:
    import jax
    import jax.numpy as jnp

    sizes = ((WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH))
    keys = jax.random.split(jax.random.key(0), len(sizes))
    pairs = zip(keys, sizes, strict=True)
    weights = [0.02 * jax.random.normal(k, (LAYERS, *size), jnp.bfloat16) for k, size in pairs]

    @jax.jit
    def transformer(x, weights):
        for qkv, mixed, up, down in zip(*weights, strict=True):
            parts = jnp.split(x @ qkv, 3, axis=-1)
            q, k, v = (part.reshape(LENGTH, HEADS, -1).swapaxes(0, 1) for part in parts)
            scores = jax.nn.softmax(q @ k.swapaxes(1, 2) / 8, axis=-1)
            x = x + (scores @ v).swapaxes(0, 1).reshape(LENGTH, WIDTH) @ mixed
            x = x + jax.nn.gelu(x @ up) @ down
        return x / (1 + jnp.abs(x).max())

    matmul = jax.jit(lambda a: (a @ a) * 0.01)
    a, x = jnp.ones((1024, 1024), jnp.bfloat16), jnp.ones((LENGTH, WIDTH), jnp.bfloat16)
    jax.block_until_ready((matmul(a), transformer(x, weights)))
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with jax.profiler.trace(out, profiler_options=options):
        for step in range(20):
            with jax.profiler.StepTraceAnnotation("decode", step_num=step):
                a = matmul(a)
                x = transformer(x, weights)
                x.block_until_ready()
    print(jax.__version__, jax.devices(), *Path(out).rglob("*.pb"), sep="\n")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        record(sys.argv[1])
    else:
        for name, flags in FLAGS.items():
            here = os.environ | {"XLA_FLAGS": flags, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
            command = [sys.executable, __file__, f"{sys.argv[1]}/{name}", "one"]
            subprocess.run(command, env=here, check=True)
