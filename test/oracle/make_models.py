"""Creates tiny random models and the results of transformers for them (golden.json).

  python make_models.py --seed 20 --out fixtures          the committed fixtures
  python make_models.py --seed 7 --out DIR --cases a,b    some cases, another seed
  python make_models.py --seed 7 --out DIR --random 20    20 cases with random features and sizes instead of the table
  ... --random 20 --families gemma2,lfm2                  of these model types
  python make_models.py --check-mutations --out DIR       checks that disabling each feature changes the golden in DIR
  python make_models.py --list
"""

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers

from cases import CASES
from golden import load_judge, make_golden, write_golden, write_model
from mutations import check_case
from random_cases import random_cases
from rounding import float32_cost, rounding_cost
from small_tokenizer import tokenizer_json

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--cases", help="comma-separated names (all by default)")
    parser.add_argument("--random", type=int, help="number of random cases to create instead of the table")
    parser.add_argument("--families", help="comma-separated model types of random cases (all by default)")
    parser.add_argument("--list", action="store_true", help="print the cases and stop")
    parser.add_argument("--check-mutations", action="store_true")
    args = parser.parse_args()
    if args.list:
        for case in CASES:
            print(f"{case['name']:24} {case['family']:14} {case['dtype']:5} {', '.join(case['features'])}")
        return
    if args.out is None or (args.seed is None and not args.check_mutations):
        parser.error("expected --seed and --out")
    families = args.families.split(",") if args.families else None
    cases = random_cases(args.seed, args.random, families) if args.random else choose(args.cases, parser)
    if args.check_mutations:
        print(f"{'case':22} {'mutation':36} {'worst':>9} {'mean':>9}   (|log-probability difference| of the top five)")
        hidden = sum(check_case(case, args.out / case["name"]) for case in cases)
        sys.exit(f"{hidden} mutations are invisible" if hidden else 0)
    for case in cases:
        directory = args.out / case["name"]
        generator = write_model(case, args.seed, directory, tokenizer_json(case["tokenizer_size"] or case["vocab"]))
        model = load_judge(case, directory)
        golden = make_golden(case, args.seed, model, generator)
        if args.random or case["records_rounding"]:
            worst, mean = rounding_cost(case, golden, model)
            golden["roundingCost"] = {"worst": round(worst, 6), "mean": round(mean, 6)}
        if args.random:
            worst, mean = float32_cost(golden, model)
            golden["float32Cost"] = {"worst": round(worst, 6), "mean": round(mean, 6)}
        write_golden(golden, directory / "golden.json")
        margins = sorted(m for p in golden["prompts"] for m in p["margins"])
        size = sum(f.stat().st_size for f in directory.iterdir())
        print(f"{case['name']:24} {size / 1024:6.0f} KB  median margin {margins[len(margins) // 2]:.2f}  {', '.join(case['features'])}", flush=True)


def choose(names, parser):
    if not names:
        return CASES
    by_name = {case["name"]: case for case in CASES}
    unknown = [name for name in names.split(",") if name not in by_name]
    if unknown:
        parser.error(f"unknown cases: {', '.join(unknown)}; print all with --list")
    return [by_name[name] for name in names.split(",")]


if __name__ == "__main__":
    main()
