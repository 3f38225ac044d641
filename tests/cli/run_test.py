"""Tests `deltarelay run` on files of tensors. Usage: run_test.py <path of deltarelay>.

The files are written without NumPy, which need not be installed.
"""

import array
import json
import math
import os
import random
import re
import struct
import subprocess
import sys
import tempfile
import unittest
import zipfile

COMMAND = ""
TYPES = {"f4": "f", "i4": "i", "i8": "q", "u2": "H", "f8": "d"}


def run(*arguments):
    return subprocess.run([COMMAND, "run", *arguments], capture_output=True, text=True, timeout=500, check=False)


def npy(kind, shape, values, order="False"):
    text = f"{{'descr': '<{kind}', 'fortran_order': {order}, 'shape': ({''.join(f'{size}, ' for size in shape)}), }}"
    text += " " * (-(len(text) + 11) % 64) + "\n"
    return (
        b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + array.array(TYPES[kind], values).tobytes()
    )


def read_npy(data):
    length = struct.unpack("<H", data[8:10])[0]
    header = eval(data[10 : 10 + length])  # a dictionary that the command wrote
    values = array.array(TYPES[header["descr"][1:]])
    values.frombytes(data[10 + length :])
    return header["shape"], list(values)


def bf16(value):
    return struct.unpack("<I", struct.pack("<f", value))[0] + 0x8000 >> 16


class Tensors:
    """Arrays of a small problem: name -> kind, shape, values."""

    def __init__(self, tokens=37, heads=2, dk=16, dv=8, gates=None, batch=None, seed=1):
        draw = random.Random(seed)
        lead = [tokens] if batch is None else [batch, tokens]
        self.arrays = {}
        for name, shape, make in (
            ("q", [*lead, heads, dk], lambda: draw.gauss(0, 1) / math.sqrt(dk)),
            ("k", [*lead, heads, dk], lambda: draw.gauss(0, 1) / math.sqrt(dk)),
            ("v", [*lead, heads, dv], lambda: draw.gauss(0, 1)),
            ("g", [*lead, heads] + ([dk] if gates is None else []), lambda: -draw.random()),
            ("beta", [*lead, heads], draw.random),
        ):
            self.add(name, "f4", shape, [make() for _ in range(math.prod(shape))])

    def add(self, name, kind, shape, values):
        self.arrays[name] = (kind, shape, values)
        return self

    def without(self, name):
        del self.arrays[name]
        return self

    def npz(self, path, compression=zipfile.ZIP_STORED):
        with zipfile.ZipFile(path, "w", compression) as archive:
            for name, (kind, shape, values) in self.arrays.items():
                with archive.open(name + ".npy", "w", force_zip64=True) as entry:  # as np.savez does
                    entry.write(npy(kind, shape, values))
        return path

    def safetensors(self, path):
        names = {"f4": "F32", "i4": "I32", "i8": "I64", "u2": "BF16"}
        header, data = {"__metadata__": {"format": "pt"}}, b""
        for name, (kind, shape, values) in self.arrays.items():
            packed = array.array(TYPES[kind], values).tobytes()
            header[name] = {"dtype": names[kind], "shape": shape, "data_offsets": [len(data), len(data) + len(packed)]}
            data += packed
        text = json.dumps(header).encode()
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text + data)
        return path


class Run(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def succeed(self, *arguments):
        done = run(*arguments, "--no-time")
        self.assertEqual(done.returncode, 0, f"{arguments}\n{done.stdout}\n{done.stderr}")
        self.assertEqual(done.stderr, "")
        return done.stdout

    def refuse(self, words, *arguments, code=2):
        done = run(*arguments)
        self.assertEqual(done.returncode, code, f"{arguments}\n{done.stdout}\n{done.stderr}")
        for word in words if isinstance(words, tuple) else (words,):
            self.assertIn(word, done.stdout + done.stderr)

    def results(self, path):
        with zipfile.ZipFile(path) as archive:
            self.assertIsNone(archive.testzip())
            return {name[:-4]: read_npy(archive.read(name)) for name in archive.namelist()}

    def results_of(self, tensors, *words):
        """o and final of an .npz."""
        out = self.path("out.npz")
        self.succeed("kda", tensors.npz(self.path("in.npz")), "--out", out, *words)
        return self.results(out)

    def test_npz(self):
        out = self.path("out.npz")
        shown = self.succeed("kda", Tensors().npz(self.path("in.npz")), "--out", out)
        self.assertNotIn("-5", shown)
        for word in ("passed", "plan", "o      error", "final  error", "hv=2 dk=16 dv=8", "seqs=37", "wrote"):
            self.assertIn(word, shown)
        found = self.results(out)
        self.assertEqual(found["o"][0], (37, 2, 8))
        self.assertEqual(found["final"][0], (1, 2, 8, 16))
        self.assertTrue(all(math.isfinite(value) for value in found["o"][1]))

    def test_the_recurrence_itself(self):
        tensors = Tensors(tokens=9, heads=1, dk=3, dv=2)
        found = self.results_of(tensors)
        arrays = {name: values for name, (_, _, values) in tensors.arrays.items()}
        state = [[0.0] * 2 for _ in range(3)]
        for t in range(9):
            q, k, g = (arrays[name][3 * t : 3 * t + 3] for name in ("q", "k", "g"))
            state = [[math.exp(g[i]) * x for x in state[i]] for i in range(3)]
            rest = [arrays["v"][2 * t + j] - sum(state[i][j] * k[i] for i in range(3)) for j in range(2)]
            state = [[state[i][j] + arrays["beta"][t] * k[i] * rest[j] for j in range(2)] for i in range(3)]
            for j in range(2):
                expected = 3**-0.5 * sum(state[i][j] * q[i] for i in range(3))
                self.assertAlmostEqual(found["o"][1][2 * t + j], expected, places=5)
        for i in range(3):
            for j in range(2):
                self.assertAlmostEqual(found["final"][1][3 * j + i], state[i][j], places=5)

    def test_times(self):
        done = run("kda", Tensors().npz(self.path("in.npz")), "--seconds", "0.05")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"time   .* median, .* least of [\d,]+ calls")

    def test_compressed_is_the_same(self):
        tensors = Tensors().add("long", "i4", [5000], [7] * 5000)
        plain = self.results_of(tensors)
        out = self.path("again.npz")
        shown = self.succeed("kda", tensors.npz(self.path("packed.npz"), zipfile.ZIP_DEFLATED), "--out", out)
        self.assertEqual(plain, self.results(out))
        self.assertIn("not looked at: long", shown)

    def test_safetensors_is_the_same(self):
        plain = self.results_of(Tensors())
        out = self.path("again.npz")
        self.succeed("kda", Tensors().safetensors(self.path("in.safetensors")), "--out", out)
        self.assertEqual(plain, self.results(out))

    def test_safetensors_out(self):
        out = self.path("out.safetensors")
        self.succeed("gdn", Tensors(gates=1, batch=2).safetensors(self.path("in.safetensors")), "--out", out)
        with open(out, "rb") as file:
            length = struct.unpack("<Q", file.read(8))[0]
            header = json.loads(file.read(length))
            self.assertEqual(len(file.read()), max(entry["data_offsets"][1] for entry in header.values()))
        self.assertEqual((header["o"]["dtype"], header["o"]["shape"]), ("F32", [2, 37, 2, 8]))
        self.assertEqual(header["final"]["shape"], [2, 2, 8, 16])

    def test_segments_agree(self):
        tensors = Tensors(tokens=300)
        whole, cut = self.results_of(tensors, "segments=off"), self.results_of(tensors, "segments=3")
        for name in ("o", "final"):
            for a, b in zip(whole[name][1], cut[name][1]):
                self.assertAlmostEqual(a, b, places=4)

    def test_packed_sequences_and_a_tail(self):
        tensors = Tensors(tokens=40).add("cu_seqlens", "i8", [4], [0, 15, 15, 37])
        found = self.results_of(tensors)
        self.assertEqual(found["final"][0], (3, 2, 8, 16))
        self.assertEqual(set(found["o"][1][37 * 16 :]), {0.0})
        alone = Tensors(tokens=15)
        for name, (kind, shape, values) in Tensors(tokens=40).arrays.items():
            alone.add(name, kind, [15, *shape[1:]], values[: 15 * math.prod(shape[1:])])
        for a, b in zip(found["o"][1], self.results_of(alone)["o"][1]):
            self.assertAlmostEqual(a, b, places=5)

    def test_states_carry_over(self):
        whole = self.results_of(Tensors(tokens=40))
        halves = [Tensors(tokens=20), Tensors(tokens=20)]
        for name, (kind, shape, values) in Tensors(tokens=40).arrays.items():
            row = math.prod(shape[1:])
            for i, half in enumerate(halves):
                half.add(name, kind, [20, *shape[1:]], values[20 * i * row : 20 * (i + 1) * row])
        first = self.results_of(halves[0])
        second = self.results_of(halves[1].add("initial", "f4", *first["final"]))
        for a, b in zip(whole["o"][1], first["o"][1] + second["o"][1]):
            self.assertAlmostEqual(a, b, places=4)
        # The other layout of states, [N, HV, DK, DV].
        turned = [first["final"][1][(h * 8 + j) * 16 + i] for h in range(2) for i in range(16) for j in range(8)]
        by_key = self.results_of(halves[1].add("initial", "f4", [1, 2, 16, 8], turned), "init=key")
        self.assertEqual(by_key["final"][0], (1, 2, 16, 8))
        for a, b in zip(by_key["o"][1], second["o"][1]):
            self.assertAlmostEqual(a, b, places=5)

    def test_head_first(self):
        tensors = Tensors(tokens=20, batch=1)
        plain = self.results_of(tensors)
        for name, (kind, shape, values) in list(tensors.arrays.items()):
            width = math.prod(shape[3:])
            turned = [values[(t * 2 + h) * width + i] for h in range(2) for t in range(20) for i in range(width)]
            tensors.add(name, kind, [1, 2, 20, *shape[3:]], turned)
        found = self.results_of(tensors, "strides=head-first")
        self.assertEqual(found["o"][0], (1, 2, 20, 8))
        for h in range(2):
            for t in range(20):
                for i in range(8):
                    self.assertAlmostEqual(
                        found["o"][1][(h * 20 + t) * 8 + i], plain["o"][1][(t * 2 + h) * 8 + i], places=5
                    )

    def test_raw_gates(self):
        tensors = Tensors().add("A_log", "f4", [1, 1, 2, 1], [0.1, 0.2]).add("dt_bias", "f4", [32], [0.01] * 32)
        self.succeed("kda", tensors.npz(self.path("in.npz")), "l2norm", "beta=logit", "gate=bounded:-5")
        self.refuse("a_log: expected gate=softplus", "kda", self.path("in.npz"))
        tensors.without("dt_bias").npz(self.path("in.npz"))
        self.refuse("no-dt-bias", "kda", self.path("in.npz"), "gate=softplus")
        self.succeed("kda", self.path("in.npz"), "gate=softplus", "no-dt-bias")
        tensors.add("A_log", "f4", [3], [0.1] * 3).npz(self.path("in.npz"))
        self.refuse("a_log: expected 2 elements, found [3]", "kda", self.path("in.npz"), "gate=softplus", "no-dt-bias")

    def test_bf16(self):
        tensors = Tensors(dk=64, dv=64)
        for name, (_, shape, values) in list(tensors.arrays.items()):
            tensors.add(name, "u2", shape, [bf16(value) for value in values])
        path, out = tensors.npz(self.path("in.npz")), self.path("out.npz")
        self.refuse("q: expected fp32 or fp16, or with --bf16", "kda", path)
        shown = self.succeed("kda", path, "--bf16", "--out", out)
        self.assertIn("kda bf16", shown)
        self.assertIn("bf16 as uint16", shown)
        again = self.path("again.npz")
        self.succeed("kda", tensors.safetensors(self.path("in.safetensors")), "--out", again)
        self.assertEqual(self.results(out), self.results(again))

    def spoiled(self, tensors, *words, out=None):
        """What is printed of a run that is not called passed, although nothing is wrong."""
        path = tensors.npz(self.path("in.npz"))
        done = run("kda", path, "--no-time", "--out", out or self.path("out.npz"), *words)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertTrue(done.stdout.startswith("NOT FINITE  kda "), done.stdout)
        self.assertNotIn("passed", done.stdout)
        return done.stdout

    def test_nan_in_the_inputs_is_said(self):
        for name, width in (("q", 16), ("k", 16), ("v", 8), ("g", 16), ("beta", 1)):
            tensors = Tensors()
            kind, shape, values = tensors.arrays[name]
            tensors.add(name, kind, shape, [math.nan] * len(values))
            shown = self.spoiled(tensors)
            self.assertIn(f"inputs hold {37 * 2 * width:,} NaN in {name}\n", shown)
            self.assertIn("results hold 592 NaN or infinities in o", shown)
            self.assertIn("not measured: 2 of 2 heads of sequences", shown)
            self.assertRegex(shown, r"\n  o      not measured\n")

    def test_what_nan_does_not_reach_is_measured(self):
        # A chunk of 64 tokens is the least that NaN leaves open: its head, from the chunk on.
        clean = self.results_of(Tensors(tokens=200))
        tensors = Tensors(tokens=200)
        kind, shape, values = tensors.arrays["v"]
        values[(130 * 2 + 1) * 8 + 3] = math.nan  # head 1, chunk 2
        values[(140 * 2 + 1) * 8 + 3] = math.inf
        shown = self.spoiled(tensors.add("v", kind, shape, values))
        self.assertIn("inputs hold 1 NaN and 1 infinities in v\n", shown)
        self.assertIn("not measured: 1 of 2 heads of sequences", shown)
        self.assertRegex(shown, r"o      error \S+, of all")
        self.assertRegex(shown, r"final  error \S+, of all")
        found = self.results(self.path("out.npz"))
        for t in range(200):
            for i in range(8):
                for head in range(2 if t < 128 else 1):
                    at = (t * 2 + head) * 8 + i
                    self.assertEqual(found["o"][1][at], clean["o"][1][at])
        self.assertEqual(found["final"][1][:128], clean["final"][1][:128])

    def test_nan_of_states_and_parameters(self):
        state = [0.0] * 128 + [math.nan] + [0.0] * 127
        self.assertIn("1 NaN in initial", self.spoiled(Tensors().add("initial", "f4", [1, 2, 8, 16], state)))
        tensors = Tensors().add("a_log", "f4", [2], [0.1, math.nan])
        shown = self.spoiled(tensors, "gate=softplus", "no-dt-bias")
        self.assertIn("inputs hold 1 NaN in a_log\n", shown)
        self.assertIn("not measured: 1 of 2 heads", shown)

    def test_nan_that_is_not_read(self):
        tensors = Tensors(tokens=40).add("cu_seqlens", "i8", [2], [0, 37])
        kind, shape, values = tensors.arrays["v"]
        values[37 * 16 :] = [math.nan] * (3 * 16)
        path = tensors.add("v", kind, shape, values).npz(self.path("in.npz"))
        self.assertTrue(self.succeed("kda", path).startswith("passed  "))

    def test_an_exact_forget_is_an_input_like_others(self):
        tensors = Tensors()
        kind, shape, values = tensors.arrays["g"]
        values[100] = -math.inf
        self.assertTrue(self.succeed("kda", tensors.add("g", kind, shape, values).npz(self.path("in.npz"))))

    def test_results_that_overflow_are_said(self):
        tensors = Tensors()
        kind, shape, values = tensors.arrays["v"]
        tensors.add("v", kind, shape, [1e30 if value > 0 else -1e30 for value in values])
        shown = self.spoiled(tensors, "scale=1e30")
        self.assertNotIn("inputs hold", shown)
        self.assertRegex(shown, r"results hold \d+ NaN or infinities in o")

    def test_gates_outside_the_contract_are_said(self):
        tensors = Tensors()
        kind, shape, values = tensors.arrays["g"]
        values[7] = 0.25
        path = tensors.add("g", kind, shape, values).npz(self.path("in.npz"))
        self.assertIn("g holds 1 log-decays above 0", self.succeed("kda", path))

    def test_without_a_check_nan_is_said_too(self):
        tensors = Tensors()
        kind, shape, values = tensors.arrays["q"]
        shown = self.succeed(
            "kda", tensors.add("q", kind, shape, [math.nan] * len(values)).npz(self.path("in.npz")), "--no-check"
        )
        self.assertTrue(shown.startswith("ran  "))
        self.assertIn("NaN in q", shown)

    def test_names_of_outputs(self):
        path = Tensors().npz(self.path("in.npz"))
        for name in ("x.csv", "x", "x.npz.txt", "x.npy", ".npz", "x.NPZ"):
            out = self.path(name)
            self.refuse(("--out: expected a name that ends in .npz or .safetensors", name), "kda", path, "--out", out)
            self.assertFalse(os.path.exists(out))

    def document(self):
        folder = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        with open(os.path.join(folder, "docs", "run.md"), encoding="utf-8") as file:
            return file.read()

    def test_commands_of_the_document(self):
        """Every command of docs/run.md, in order, on files with the arrays that its text saves."""
        arrays = Tensors().add("a_log", "f4", [2], [0.1, 0.2]).add("dt_bias", "f4", [2, 16], [0.01] * 32).arrays
        commands = []
        for line in self.document().splitlines():
            saved = re.match(r'    np\.savez\("(\S+\.npz)", (.*)\)$', line)
            stored = re.match(r'    safetensors\.torch\.save_file\(\{(.*)\}, "(\S+\.safetensors)"\)$', line)
            if saved or stored:
                named = re.findall(r"(\w+)=\1\b", saved[2]) if saved else re.findall(r'"(\w+)": \w+', stored[1])
                tensors = Tensors()
                tensors.arrays = {name: arrays[name] for name in named}
                tensors.npz(self.path(saved[1])) if saved else tensors.safetensors(self.path(stored[2]))
            if line.startswith("    deltarelay "):
                commands.append(line.split())
                self.assertEqual(commands[-1][:2], ["deltarelay", "run"])
                done = subprocess.run(
                    [COMMAND, *commands[-1][1:], "--seconds", "0.01"],
                    cwd=self.folder.name,
                    capture_output=True,
                    text=True,
                    timeout=100,
                )
                self.assertEqual(done.returncode, 0, f"{line}\n{done.stdout}{done.stderr}")
                self.assertTrue(done.stdout.startswith("passed  "), done.stdout)
        self.assertGreaterEqual(len(commands), 3)

    def test_the_printed_lines_of_the_document_have_its_form(self):
        shown = self.document().split("## What is printed\n\n")[1].split("\n\n")[0]
        path = Tensors().npz(self.path("in.npz"))
        done = run("kda", path, "--out", self.path("results.npz"), "--seconds", "0.05")
        for ours, theirs in zip(done.stdout.splitlines(), shown.splitlines(), strict=True):
            self.assertEqual(ours.split()[0], theirs.split()[0])
        self.assertIn(done.stdout.splitlines()[0], shown)

    def test_examples_of_the_help(self):
        Tensors().npz(self.path("mine.npz"))
        for words in (["--help"], ["run", "--help"]):
            text = subprocess.run([COMMAND, *words], capture_output=True, text=True, timeout=100).stdout
            examples = re.findall(r"^  deltarelay (run kda mine\.npz.*)$", text, re.M)
            self.assertTrue(examples)
            for example in examples:
                done = subprocess.run(
                    [COMMAND, *example.split(), "--seconds", "0.01"],
                    cwd=self.folder.name,
                    capture_output=True,
                    text=True,
                    timeout=100,
                )
                self.assertEqual(done.returncode, 0, example + done.stdout + done.stderr)

    def test_refusals_name_the_array(self):
        path = self.path("in.npz")
        cases = (
            ("beta: expected an array of this name in the file, found q, k, v, g", Tensors().without("beta")),
            ("q: expected fp32, bf16 or fp16, found <f8", Tensors().add("q", "f8", [37, 2, 16], [0.0] * 37 * 32)),
            ("q: expected [T, HQK, DK]", Tensors().add("q", "f4", [37, 32], [0.0] * 37 * 32)),
            (
                "k: expected the shape of q = [37, 2, 16], found [37, 1, 16]",
                Tensors().add("k", "f4", [37, 1, 16], [0.0] * 37 * 16),
            ),
            ("v: expected the tokens of q", Tensors().add("v", "f4", [36, 2, 8], [0.0] * 36 * 16)),
            ("g: expected a gate for each token, value head and key channel", Tensors(gates=1)),
            ("beta: expected one for each token and value head", Tensors().add("beta", "f4", [37], [0.0] * 37)),
            ("initial: expected [N, HV, DV, DK]", Tensors().add("initial", "f4", [1, 2, 16, 8], [0.0] * 256)),
            ("seq_offsets: expected int32 or int64, found <f4", Tensors().add("seq_offsets", "f4", [2], [0, 37])),
            ("found 38 at 1", Tensors().add("seq_offsets", "i4", [2], [0, 38])),
            ("found 1 at 0", Tensors().add("seq_offsets", "i4", [2], [1, 37])),
            ("seq_offsets: expected tokens in one row", Tensors(batch=2).add("seq_offsets", "i4", [2], [0, 37])),
        )
        for words, tensors in cases:
            self.refuse(words, "kda", tensors.npz(path))
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("q.npy", npy("f4", [2, 2], [0.0] * 4, "True"))
        self.refuse("q: expected the last index to run fastest", "kda", path)

    def test_refusals_of_words_and_files(self):
        path = Tensors().npz(self.path("in.npz"))
        self.refuse(("hv=4", "which the file says"), "kda", path, "hv=4")
        self.refuse("slots", "kda", path, "init=slots")
        self.refuse("initial or initial_state: expected an array", "kda", path, "init")
        self.refuse("nosuch", "kda", path, "nosuch=1")
        self.refuse(self.path("none.npz"), "kda", self.path("none.npz"))
        self.refuse("expected a path that can be written", "kda", path, "--out", self.path("no/such/folder.npz"))
        self.refuse("rule", "nope", path)

    def test_damaged_files(self):
        with open(Tensors(tokens=3, heads=1, dk=2, dv=2).npz(self.path("in.npz"), zipfile.ZIP_DEFLATED), "rb") as file:
            whole = file.read()
        draw = random.Random(5)
        path = self.path("damaged.npz")
        for i in range(30):
            damaged = bytearray(whole)
            if i % 2 == 0:
                del damaged[draw.randrange(len(damaged)) :]
            for _ in range(4):
                if damaged:
                    damaged[draw.randrange(len(damaged))] = draw.randrange(256)
            with open(path, "wb") as file:
                file.write(damaged)
            done = run("kda", path, "--no-time")
            self.assertIn(done.returncode, (0, 2), f"{i}: {done.stdout}{done.stderr}")
            self.assertNotIn("Sanitizer", done.stderr)


if __name__ == "__main__":
    COMMAND = sys.argv.pop(1)
    unittest.main()
