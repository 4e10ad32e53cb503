"""The PyTorch side of bench/vs_pytorch.py and bench/gpu.sh: GPT-2 and Llama written plainly, trained as one would.

    pytorch_step.py step --model gpt2-124m --dtype bf16 --threads 2 --data tokens.bin [--compile] [--steps N] ...
    pytorch_step.py step ... --ranks 2 --threads 1 --parallel ddp|fsdp2|tp (processes, gloo; --batch is that of all)
    pytorch_step.py step --device cuda --model llama3.2-1b --batch 8 --micro-batch 4 --seq-len 4096 [--compile | --compile-blocks]
    pytorch_step.py step ... --weights DIR --samples FILE (bench/loss_curve.py: not random, and not any)
    pytorch_step.py gemm --dtype bf16 --threads 2 [--device cuda] [--seconds 4] [--shapes FILE]

`step` prints one JSON line per finished step (flushed: its arrival is the measurement; `seconds` is its time by the
clock of this process), `gemm` one line with the best rate of matrix products, and with --shapes one for each before it.
Without --data the tokens are random. Weights and optimizer state are f32; bf16 is torch.autocast, PyTorch's usual mixed
precision, and for FSDP2 its MixedPrecisionPolicy: parameters gathered in bf16, gradients summed in f32. bf16_stored
rounds more, as Tutti does: a bf16 copy of the weights makes activations that are all bf16, residuals too.
"""

import argparse
import contextlib
import dataclasses
import json
import math
import pathlib
import tempfile
import time

import torch
from torch import distributed, multiprocessing, nn
from torch.nn import functional as F


@dataclasses.dataclass
class Sizes:
    """As the presets of src/tutti/spec/presets.cpp."""
    family: str
    vocab: int
    width: int = 768      # C
    layers: int = 12      # L
    heads: int = 12       # H
    kv_heads: int = 0     # 0: H
    head_dim: int = 0     # D; 0: C / H
    ffn: int = 3072       # F
    max_positions: int = 1024
    rope_theta: float = 10000.0


    @property
    def D(self):
        return self.head_dim or self.width // self.heads

    @property
    def key_width(self):
        return (self.kv_heads or self.heads) * self.D


MODELS = {
    "gpt2-124m": Sizes("gpt2", 50257), "llama-110m": Sizes("llama", 32000, ffn=2048),
    "llama-5m": Sizes("llama", 256, 256, 6, 4, ffn=704, max_positions=2048),
    "llama3.2-1b": Sizes("llama", 128256, 2048, 16, 32, 8, 64, 8192, 8192, 5e5),
    "llama3.2-3b": Sizes("llama", 128256, 3072, 28, 24, 8, 128, 8192, 8192, 5e5),
}


def attention(q, k, v, D):
    """Causal self-attention; q, k, v (B, T, C) or (B, T, H, D); k and v may have fewer heads."""
    B, T = q.shape[:2]
    q, k, v = (x.reshape(B, T, -1, D).transpose(1, 2) for x in (q, k, v))
    grouped = {"enable_gqa": True} if k.shape[1] < q.shape[1] else {}
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, **grouped).transpose(1, 2).reshape(B, T, -1)


class Gpt2Block(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.D = s.D
        self.ln_1, self.ln_2 = nn.LayerNorm(s.width), nn.LayerNorm(s.width)
        self.c_attn, self.attn_c_proj = nn.Linear(s.width, 3 * s.width), nn.Linear(s.width, s.width)
        self.c_fc, self.mlp_c_proj = nn.Linear(s.width, s.ffn), nn.Linear(s.ffn, s.width)

    def forward(self, x, rope):
        q, k, v = self.c_attn(self.ln_1(x)).chunk(3, dim=-1)
        x = x + self.attn_c_proj(attention(q, k, v, self.D))
        return x + self.mlp_c_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


def rotate(x, cosines, sines):
    """x (B, T, H, D), pairs (k, k + D/2)."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cosines - b * sines, b * cosines + a * sines), dim=-1)


class LlamaBlock(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.D = s.D
        self.attention_norm, self.mlp_norm = nn.RMSNorm(s.width, 1e-5), nn.RMSNorm(s.width, 1e-5)
        query = s.heads * s.D
        self.q, self.o = nn.Linear(s.width, query, bias=False), nn.Linear(query, s.width, bias=False)
        self.k, self.v = (nn.Linear(s.width, s.key_width, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(s.width, s.ffn, bias=False) for _ in range(2))
        self.down = nn.Linear(s.ffn, s.width, bias=False)

    def forward(self, x, rope):
        h = self.attention_norm(x)
        B, T, C = h.shape
        q, k, v = (f(h).view(B, T, -1, self.D) for f in (self.q, self.k, self.v))
        cosines, sines = (table[:T, None].to(q.dtype) for table in rope)
        x = x + self.o(attention(rotate(q, cosines, sines), rotate(k, cosines, sines), v, self.D))
        h = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Model(nn.Module):
    """Embedding, blocks, norm, head tied to the embedding; returns the mean loss."""

    def __init__(self, s):
        super().__init__()
        gpt2 = s.family == "gpt2"
        self.tokens = nn.Embedding(s.vocab, s.width)
        self.positions = nn.Embedding(s.max_positions, s.width) if gpt2 else None
        self.blocks = nn.ModuleList((Gpt2Block if gpt2 else LlamaBlock)(s) for _ in range(s.layers))
        self.norm = nn.LayerNorm(s.width) if gpt2 else nn.RMSNorm(s.width, 1e-5)
        self.register_buffer("cosines", torch.empty(0), persistent=False)
        self.register_buffer("sines", torch.empty(0), persistent=False)

    def initialise(self, s, device):
        """The values of a model that was built on the meta device: drawing them twice would cost start-up time."""
        self.to_empty(device=device)
        angles = torch.outer(torch.arange(s.max_positions), s.rope_theta ** (-torch.arange(0, s.D, 2) / s.D))
        self.cosines, self.sines = angles.cos().to(device), angles.sin().to(device)
        for name, parameter in self.named_parameters():
            if parameter.ndim >= 2:
                residual = name.endswith(("c_proj.weight", ".o.weight", ".down.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * s.layers) if residual else 0.02)
            else:
                nn.init.constant_(parameter, 0.0 if name.endswith("bias") else 1.0)

    def forward(self, tokens, targets):
        x = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions.weight[:tokens.shape[1]]
        for block in self.blocks:
            x = block(x, (self.cosines, self.sines))
        return self.loss(x, targets)

    def loss(self, x, targets):
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    def compile_blocks(self):
        """Blocks are equal: all but the first find their code in the cache. The head and the loss are another piece."""
        for block in self.blocks:
            block.compile()
        self.loss = torch.compile(self.loss)


def shard(model, dtype):
    """FSDP2 as its tutorial has it: every block a unit, the rest another."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    mesh = distributed.device_mesh.init_device_mesh("cpu", (distributed.get_world_size(),))
    low = torch.bfloat16 if dtype == "bf16" else None
    policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def share_layers(model, ranks):
    """Tensor parallelism as PyTorch's tutorial has it, with sequence parallelism: every norm runs on a part of the
    sequence and its output is gathered once for all layers that read it; the vocabulary of the embedding, which is the
    head's, is cut, and so is the loss. Returns the context in which forward and backward of the loss run."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleOutput, RowwiseParallel,
                                                   SequenceParallel, loss_parallel, parallelize_module)
    mesh = distributed.device_mesh.init_device_mesh("cpu", (ranks,))
    norms = ["norm", *(f"blocks.{i}.{name}" for i in range(len(model.blocks)) for name in ("attention_norm", "mlp_norm"))]
    plan = {name: SequenceParallel() for name in norms}
    plan["tokens"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
    for i in range(len(model.blocks)):
        plan.update({f"blocks.{i}.{name}": ColwiseParallel() for name in ("q", "k", "v", "gate", "up")})
        plan.update({f"blocks.{i}.{name}": RowwiseParallel(output_layouts=Shard(1)) for name in ("o", "down")})
    parallelize_module(model, mesh, plan)
    gathered = {name: PrepareModuleOutput(output_layouts=Shard(1), desired_output_layouts=Replicate(),
                                          use_local_output=False) for name in norms}
    parallelize_module(model, mesh, gathered)
    return loss_parallel


def run_rank(rank, options, meeting):
    torch.set_num_threads(options.threads)
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=options.ranks)
    run_steps(options, rank)
    distributed.destroy_process_group()


def run_ranks(options):
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(run_rank, (options, f"{folder}/meeting"), nprocs=options.ranks)


def tokens_of(options, count):
    if not options.data:
        return torch.randint(MODELS[options.model].vocab, (count,))
    import numpy  # which torch does not bring
    return torch.from_numpy(numpy.fromfile(options.data, dtype=numpy.uint16).astype(numpy.int64))


def stored_tensors(folder):
    """Name and value of what a Hugging Face directory holds, all f32. The format: 8 bytes for the length of a JSON header
    that says type, shape and place of each, and the values."""
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        raw = bytearray(path.read_bytes())
        start = 8 + int.from_bytes(raw[:8], "little")
        for name, entry in json.loads(raw[8:start]).items():
            if name != "__metadata__":
                assert entry["dtype"] == "F32", f"{path}: {name} is {entry['dtype']}"
                begin, end = entry["data_offsets"]
                yield name, torch.frombuffer(raw, dtype=torch.float32, count=(end - begin) // 4,
                                             offset=start + begin).view(entry["shape"])


# Of transformers, to the names above.
LLAMA_NAMES = {"model.embed_tokens": "tokens", "model.norm": "norm", "model.layers": "blocks", "self_attn.q_proj": "q",
               "self_attn.k_proj": "k", "self_attn.v_proj": "v", "self_attn.o_proj": "o", "mlp.gate_proj": "gate",
               "mlp.up_proj": "up", "mlp.down_proj": "down", "input_layernorm": "attention_norm",
               "post_attention_layernorm": "mlp_norm"}
GPT2_NAMES = {"transformer.": "", "wte": "tokens", "wpe": "positions", "ln_f": "norm", "attn.c_attn": "c_attn",
              "attn.c_proj": "attn_c_proj", "mlp.c_fc": "c_fc", "mlp.c_proj": "mlp_c_proj"}


def load_weights(model, family, folder):
    ours = dict(model.named_parameters())
    for name, value in stored_tensors(folder):
        if name == "lm_head.weight":  # the embedding
            continue
        gpt2 = family == "gpt2"
        for theirs, own in (GPT2_NAMES if gpt2 else LLAMA_NAMES).items():
            name = name.replace(theirs, own)
        name = name.replace("h.", "blocks.", 1) if gpt2 and name.startswith("h.") else name
        matrix_of_block = gpt2 and value.ndim == 2 and name.startswith("blocks.")  # stored (in, out)
        with torch.no_grad():
            ours.pop(name).copy_(value.T if matrix_of_block else value)
    assert not ours, f"{folder} has no {sorted(ours)}"


def windows_of(options, count):
    """(count, T + 1) tokens; those of --data overlap by one."""
    T = options.seq_len
    if options.samples:
        raw = bytearray(pathlib.Path(options.samples).read_bytes())
        return torch.frombuffer(raw, dtype=torch.int16).long().bitwise_and(0xffff).view(-1, T + 1)[:count]
    return tokens_of(options, (count + 1) * T).unfold(0, T + 1, T)[:count]


def run_steps(options, rank=0):
    torch.manual_seed(1234)
    with torch.device("meta"):
        model = Model(MODELS[options.model])
    model.initialise(MODELS[options.model], options.device)
    if options.weights:
        load_weights(model, MODELS[options.model].family, options.weights)
    around_loss = contextlib.nullcontext
    if options.parallel == "fsdp2":
        shard(model, options.dtype)
    if options.parallel == "tp":
        around_loss = share_layers(model, options.ranks)
    forward = nn.parallel.DistributedDataParallel(model) if options.parallel == "ddp" else model
    if options.dtype == "bf16_stored":
        forward = lambda *batch: torch.func.functional_call(  # noqa: E731
            model, {name: p.bfloat16() for name, p in model.named_parameters()}, batch)
    forward = torch.compile(forward) if options.compile else forward
    if options.compile_blocks:
        model.compile_blocks()
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in parameters if p.ndim >= 2], "weight_decay": 0.1},
         {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0}],
        lr=3e-4, betas=(0.9, 0.95), eps=1e-8, fused=True)
    sharers = 1 if options.parallel == "tp" else options.ranks  # of the batch
    B = options.batch // sharers
    micro = options.micro_batch or B
    data = windows_of(options, options.steps * sharers * B)
    autocast = options.dtype == "bf16" and options.parallel != "fsdp2"
    for step in range(options.steps):
        started = time.perf_counter()
        first = (step * sharers + rank % sharers) * B
        total = 0
        for begin in range(first, first + B, micro):
            windows = data[begin:begin + micro].to(options.device)
            with around_loss():
                with torch.autocast(options.device, torch.bfloat16, enabled=autocast):
                    loss = forward(windows[:, :-1], windows[:, 1:]) / (B // micro)
                loss.backward()
            total += loss.detach()
        norm = nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if options.parallel in ("fsdp2", "tp"):
            norm = norm.full_tensor()
        if rank == 0:  # its own loss
            line = {"step": step + 1, "loss": total.item(), "grad_norm": norm.item()}  # waits for the device
            if options.device == "cuda":
                torch.cuda.synchronize()
                line["peak_bytes"] = torch.cuda.max_memory_allocated()
            print(json.dumps({**line, "seconds": time.perf_counter() - started}), flush=True)


def products_of(options):
    """(what, M, N, K, how it is made) of the products to time: those of a file of `tutti bench gemm --json`, or squares
    and some of the models."""
    if options.shapes:
        with open(options.shapes, encoding="utf-8") as file:
            rows = json.load(file)["rows"]
        return [(row["name"], row["rows"], row["out"], row["in"], row["product"]) for row in rows]
    shapes = [(1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (4096, 3072, 768), (4096, 768, 3072)]
    if options.device == "cuda":
        shapes = [(n, n, n) for n in (4096, 8192, 16384)]
    return [(f"{M} x {N} x {K}", M, N, K, "y = x w^T") for M, N, K in shapes]


def run_gemm(options):
    """The rate of each product, a JSON line each, and last the fastest. Tutti's weight gradients are f32 sums of 16-bit
    factors, which torch.mm does not make: its own have 16 bits."""
    dtype = torch.bfloat16 if options.dtype == "bf16" else torch.float32
    best, shape = 0.0, ""
    finish = torch.cuda.synchronize if options.device == "cuda" else lambda: None
    products = products_of(options)
    for name, rows, out, width, product in products:
        x, w, y = (torch.randn(*size, device=options.device).to(dtype) for size in ((rows, width), (out, width), (rows, out)))
        call = {"y = x w^T": lambda: x @ w.T, "dx = dy w": lambda: y @ w, "dw += dy^T x": lambda: y.T @ x}[product]
        call()
        finish()
        seconds, end = [], time.perf_counter() + options.seconds / len(products)
        while time.perf_counter() < end or len(seconds) < 3:
            begin = time.perf_counter()
            call()
            finish()
            seconds.append(time.perf_counter() - begin)
        flops = 2.0 * rows * out * width
        if flops / min(seconds) > best:
            best, shape = flops / min(seconds), name
        if options.shapes:
            median = sorted(seconds)[len(seconds) // 2]
            print(json.dumps({"name": name, "product": product, "flops_per_s": flops / median}), flush=True)
    print(json.dumps({"flops_per_s": best, "shape": shape}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["step", "gemm"])
    parser.add_argument("--model", choices=MODELS)
    parser.add_argument("--dtype", choices=["bf16", "bf16_stored", "f32"], default="f32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--parallel", choices=["ddp", "fsdp2", "tp"])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--micro-batch", type=int, help="[a rank's part of the batch]")
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--data", help="u16 tokens")
    parser.add_argument("--samples", help="u16 tokens, windows of seq_len + 1, in the order in which they are trained on")
    parser.add_argument("--weights", help="a Hugging Face directory in f32 [drawn]")
    parser.add_argument("--shapes", help="of gemm: what `tutti bench gemm --model M --json` printed")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--compile-blocks", action="store_true", help="block by block, for models of many blocks")
    parser.add_argument("--seconds", type=float, default=4)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    steps = run_ranks if options.parallel else run_steps
    (steps if options.what == "step" else run_gemm)(options)


if __name__ == "__main__":
    main()
