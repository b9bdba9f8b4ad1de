"""The docs are true: what they list exists, what they show runs, their numbers are those of the committed results."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import runpy
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from knapcache.lab.traffic import KINDS
from knapcache.policy import registry
from knapcache_experiments.catalogue import EXPERIMENTS
from knapcache_experiments.worlds import DEVELOPMENT, HELD_OUT, REQUESTS, UNRESTRICTED

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "experiments" / "results"
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def flat(name: str) -> str:
    """A page without its line breaks."""
    return " ".join(text(name).split())


def rows(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["rows"]
    return found


def row(name: str, **wanted: Any) -> dict[str, Any]:
    (found,) = [r for r in rows(name) if all(r[key] == value for key, value in wanted.items())]
    return found


def benchmark(name: str, picture: str = "") -> dict[str, Any]:
    """Return the committed result of a benchmark. picture: the name of a plot that is committed, too."""
    if picture:
        assert (ROOT / "bench" / "results" / f"{picture}.png").read_bytes().startswith(b"\x89PNG")
    found: dict[str, Any] = json.loads(text(f"bench/results/{name}.json"))
    return found


def printed_tables(name: str) -> str:
    """Return the tables of the docs that a benchmark prints from its committed result."""
    command = [sys.executable, f"bench/{name}.py", "--markdown", f"bench/results/{name}.json"]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def check_lines(page: str, lines: Iterable[str]) -> None:
    """Check that a page has all lines of a table."""
    for line in lines:
        assert line in page, f"the docs do not have this line of the committed result: {line}"


def targets(bench: dict[str, Any], form: str = ".3g") -> Iterator[str]:
    """Yield the lines of a table of targets."""
    for b in bench["targets"]:
        yield f"| {b['metric']} | {b['measured']:{form}} | {b['target']} | {'yes' if b['met'] else 'no'} |"


def command_parser(command: str) -> Any:
    from knapcache.cli.main import build_parser

    return build_parser([command])._subparsers._group_actions[0].choices[command]  # type: ignore[union-attr, index]


def check_options(page: str, *commands: str) -> None:
    """Check that a page mentions every option of some commands."""
    for command in commands:
        for option in set(re.findall(r"--[a-z-]+", command_parser(command).format_usage())):
            assert re.search(rf"[` ]{option}\b", page), f"the page does not mention {option} of {command}"


def test_every_policy_is_documented() -> None:
    table = text("docs/background/policies.md").split("## How they compare")[0]
    documented = re.findall(r"^\| `([a-z0-9-]+)` \|", table, re.MULTILINE)
    assert documented == [*registry.SPECS, *registry.BOUNDS]


def test_every_experiment_is_documented_and_its_results_are_committed() -> None:
    documented = re.findall(
        r"^\| `([a-z0-9-]+)` \|", text("docs/background/experiments.md").split("## Workloads")[0], re.MULTILINE
    )
    assert documented == list(EXPERIMENTS)
    for name, experiment in EXPERIMENTS.items():
        record = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
        assert record["name"] == name
        defaults = json.loads(json.dumps(vars(experiment.settings())))
        assert {**record["settings"], **defaults} == record["settings"], (
            "the committed run is not one with the defaults"
        )
        assert (RESULTS / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_recipes_name_files_that_exist() -> None:
    recipes = text("CONTRIBUTING.md").split("## Recipes")[1].split("## Tests")[0]
    assert len(re.findall(r"^### Add ", recipes, re.MULTILINE)) == 5
    paths = [path for path in re.findall(r"`((?:src|tests|docs)/[^`]+)`", recipes) if "NAME" not in path]
    assert len(paths) > 15
    for path in paths:
        assert (ROOT / path).exists(), f"CONTRIBUTING.md names {path}"
    from knapcache.store.redis.urls import SCHEMES
    from knapcache.store.registry import STORES
    from knapcache.wire.registry import FORMATS

    # One line per format, store and policy, as the recipes say.
    assert text("src/knapcache/wire/registry.py").count(".FORMAT,") == len(FORMATS)
    stores = text("src/knapcache/store/registry.py")
    assert all(f'    "{scheme}": ' in stores for scheme in STORES if scheme not in SCHEMES)
    assert stores.count("for scheme in redis_urls.SCHEMES") == 1


def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    """A page without a link to it is a warning. The builder `dummy` reads and checks all pages and writes none."""
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet", "-b", "dummy"]
    done = subprocess.run([*command, ROOT / "docs", tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_command_line_reference_is_current() -> None:
    cli_reference: Any = runpy.run_path(str(ROOT / "docs" / "cli_reference.py"))
    assert cli_reference["PAGE"].read_text(encoding="utf-8") == cli_reference["page"](), (
        "run python docs/cli_reference.py"
    )


def test_the_picture_of_the_packages_is_that_of_the_code() -> None:
    house: Any = runpy.run_path(str(ROOT / "docs" / "house.py"))
    assert house["PICTURE"].read_text(encoding="utf-8") == house["picture"](), "run python docs/house.py"


def test_commands_in_the_docs_parse() -> None:
    """Every `knapcache …` line of the docs is a command line that the parser accepts."""
    from knapcache.cli.main import build_parser

    seen = 0
    for page in PAGES:
        content = page.read_text(encoding="utf-8")
        blocks = re.findall(r"^knapcache ([^#\n]*)", content, re.MULTILINE)
        inline = re.findall(r"`knapcache ([^`]*)`", " ".join(content.split()))
        for words in map(str.split, blocks + inline):
            if (
                words[0] not in ("demo", "experiment", "inspect", "plan", "policies", "purge", "replay", "serve")
                or {"NAME", "TRACE", "LOG", "OPTIONS", "--help"} & set(words)
                or len(words) == 1
            ):
                continue
            needs_out = words[0] == "experiment" and "--out" not in words
            build_parser(words).parse_args([*words, "--out", "x"] if needs_out else words)
            seen += 1
    assert seen >= 20


def test_every_format_and_option_of_replay_is_documented() -> None:
    from knapcache.lab.grid import run_cell
    from knapcache.lab.traces import FORMATS

    page = text("docs/guides/lab.md")
    documented = re.findall(r"^\| `([a-z-]+)` \|", page.split("## Input formats")[1], re.MULTILINE)
    assert documented == list(FORMATS)
    check_options(page, "replay")
    fields = re.findall(r'^        "([a-z_]+)":', inspect.getsource(run_cell), re.MULTILINE)
    assert fields
    for field in fields:
        assert f"`{field}`" in page


def test_every_option_and_field_of_plan_is_documented() -> None:
    from knapcache.lab import plan, summary

    page = text("docs/guides/lab.md")
    check_options(page, "plan")
    section = page.split("## Plan the capacity")[1].split("## Input formats")[0]
    fields = re.findall(r'^ +"([a-z_]+)": ', inspect.getsource(summary.to_json), re.MULTILINE)
    assert len(fields) > 15
    for field in {*fields, *plan.POLICIES} - {"knapcache", "log", "rows"}:
        assert f"`{field}`" in section, f"docs/guides/lab.md does not mention {field}"
    assert f"`{plan.RANGE}`" in section


def test_the_live_cache_is_documented() -> None:
    from knapcache import Answer, Cache, Reply
    from knapcache.cache.ledger import LedgerRow

    page = text("docs/guides/library.md")
    arguments = [name for name in inspect.signature(Cache).parameters if name != "self"]
    table = page.split("## Arguments")[1].split("## Requests")[0]
    documented = re.findall(r"`([a-z_]+)`", "".join(re.findall(r"^\| (`.*?) \|", table, re.M)))
    assert documented == arguments
    for option in [name for name in inspect.signature(Cache.fetch).parameters if name not in ("self", "call")][2:]:
        assert f"`{option}" in page, f"docs/guides/library.md does not mention {option}"
    for field in (*Reply.__dataclass_fields__, *Answer._fields):
        assert f"`{field}" in page, f"docs/guides/library.md does not mention {field}"
    public = [name for name, _ in inspect.getmembers(Cache, inspect.isfunction) if not name.startswith("_")]
    for name in public:
        assert re.search(rf"\b{name}\(|`{name}`|\.{name}\b", page), f"docs/guides/library.md does not mention {name}"
    known = page.split("## Statistics")[1].split("`check()` recomputes")[0]
    with Cache("1MiB", cost="seconds", policy="lru", shadows=()) as cache:
        reported = {field.name for field in dataclasses.fields(cache.stats())}
    counted = {
        name
        for path in (ROOT / "src" / "knapcache" / "cache").glob("*.py")
        for name in re.findall(r'ledger\.count\("([a-z_]+)"', path.read_text(encoding="utf-8"))
    }
    assert len(counted) >= 8
    assert counted <= reported, "a counter is no field of CacheStats"
    for name in reported | counted | set(LedgerRow.__dataclass_fields__):
        assert f"`{name}`" in known, f"docs/guides/library.md does not mention {name}"
    check_options(page, "inspect", "purge")


def test_numbers_of_figure_1() -> None:
    page = text("docs/background/algorithm.md")
    for policy in ("offline", "vsocb-lazy", "vsocb", "vsocb-apx", "berkeley-multi", "berkeley", "static"):
        r = row("figure-1", policy=policy)
        assert re.search(
            rf"\| `{policy}`.*\| \**{r['regret_mean']:.0f} ± {r['regret_se']:.0f}\** \| {r['cost_mean']:,.0f} \|", page
        ), f"{policy}: the table in docs/background/algorithm.md is not the committed result {r}"


def percent(x: float) -> str:
    """With one decimal and a true minus."""
    return f"{round(x, 1) + 0.0:.1f}".replace("-", "−")


def test_numbers_of_figure_2() -> None:
    saved = {(r["policy"], r["gamma"]): f"{percent(r['saved_percent'])} %" for r in rows("figure-2")}
    page = flat("docs/background/algorithm.md")
    assert f"| `vsocb` / `vsocb-apx` | {saved['vsocb', 0.0]} / {saved['vsocb-apx', 0.0]} |" in page
    assert f"| `vsocb-lazy` | {saved['vsocb-lazy', 0.3]} |" in page
    assert f"| {saved['berkeley-multi', 1.0]} / {saved['berkeley-multi', 0.0]} |" in page
    assert f"| `adaptive`, the default | {saved['adaptive', None]} |" in page
    assert f"| {saved['gdsf-cost', None]} / {saved['lfu', None]} / {saved['lru', None]} |" in page
    assert f"| {saved['static', None]} |" in page
    swept = [r["saved_percent"] for r in rows("table-2") if r["policy"] == "vsocb"]
    assert f"ranges from {percent(min(swept))} % (equally popular prompts) to {percent(max(swept))} %" in page
    assert min(rows("table-2"), key=lambda r: (r["policy"] != "vsocb", r["saved_percent"]))["arrivals"] == "uniform"
    assert f"**{saved['vsocb', 0.0]} cheaper** than the paper's baseline" in flat("README.md")


def test_numbers_of_the_paper_claim_by_claim() -> None:
    page = flat("docs/background/paper.md")
    ours, theirs = (row("figure-2", policy=p) for p in ("vsocb", "berkeley"))
    saving = f"{percent(ours['saved_percent'])} % less (± {ours['saved_se']:.1f})"
    assert f"| {theirs['cost_mean']:,.0f} → {ours['cost_mean']:,.0f} s, {saving} |" in page
    swept = [r for r in rows("table-2") if r["policy"] == "vsocb"]
    low, high = (percent(f(r["saved_percent"] for r in swept)) for f in (min, max))
    assert f"Other readings give {low} % to {high} %" in page
    low, high = (percent(f(r["saved_over_best_percent"] for r in swept)) for f in (min, max))
    over_best = percent(ours["saved_over_best_percent"])
    assert f"| {over_best} % less than the best baseline; {low} % to {high} % over all readings |" in page
    assert f"VSOCB is between {low} % and {high} % cheaper" in page
    regret = {r["policy"]: f"{r['regret_mean']:,.0f}" for r in rows("figure-1")}
    assert f"| {regret['vsocb']} against {regret['berkeley']} |" in page
    assert f"the better baseline has {regret['berkeley-multi']} |" in page
    assert f"| {regret['vsocb']} against {regret['offline']} |" in page
    dearer = percent(100 * (row("figure-2", policy="vsocb-apx")["cost_mean"] / ours["cost_mean"] - 1))
    assert f"regret {regret['vsocb-apx']} against {regret['vsocb']} at β = 0.05; cost {dearer} % dearer" in page
    slope = {r["policy"]: f"T^{r['slope']:.2f}" for r in rows("long-run")}
    assert f"its regret grows like {slope['berkeley']} |" in page
    assert f"{slope['vsocb']} for `vsocb`, {slope['vsocb-lazy']} for `vsocb-lazy`" in page
    assert f"up to {row('errata', repairs='none')['peak_occupancy']} units in a cache of 60" in page
    e7 = row("errata", repairs="all but E7")["regret_mean"]
    assert f"regret {e7:,.0f} with it, {regret['vsocb']} without" in page
    due = row("alpha", policy="vsocb", alpha=0.5)
    calls = f"{round(due['oracle_calls']) + round(due['oracle_calls_skipped']):,}"
    assert f"{calls} are due at α = 0.5, bound {due['oracle_calls_bound']:,.0f}" in page
    small, large = (
        re.search(rf"\| `--capacity {m}`[^|]*\| \d+ \| (\d+) \|", text("docs/background/algorithm.md"))
        for m in (10, 300)
    )
    assert small
    assert large
    assert f"| {small[1]} at M = 10, {regret['vsocb']} at 60, {large[1]} at 300 (" in page


def test_numbers_of_the_measured_sweep() -> None:
    page = flat("docs/background/paper.md")
    swept = rows("table-2")
    cost = {(r["policy"], r["gamma"], r["arrivals"], r["unit"]): r["cost_mean"] for r in swept}

    def dearer(than: str) -> list[float]:
        """By how many % `adaptive` is dearer, cell by cell."""
        return [100 * (cost["adaptive", None, *k[2:]] / c - 1) for k, c in cost.items() if k[0] == than]

    vsocb = [r for r in swept if r["policy"] == "vsocb"]
    units = sorted({r["unit"] for r in vsocb})
    for arrivals in dict.fromkeys(r["arrivals"] for r in vsocb):
        line = " | ".join(
            f"{percent(r['saved_percent'])} ± {r['saved_se']:.1f}" for r in vsocb if r["arrivals"] == arrivals
        )
        assert f"| `{arrivals}` | {line} |" in page
    assert f"| arrivals | {' | '.join(f'{u} tokens' for u in units)} |" in page
    enough = sum(r["saved_percent"] >= 11 for r in vsocb)
    assert f"at least 11 % in {enough} of {len(vsocb)} cells" in page
    assert f"never more than {percent(max(dearer('vsocb')))} % dearer than `vsocb`" in page
    assert f"never more than {percent(max(dearer('berkeley-multi')))} % dearer than `berkeley-multi`" in page
    assert f"{percent(-sum(dearer('vsocb')) / len(vsocb))} % cheaper than `vsocb` on average" in page
    assert f"is `vsocb-lazy`, by {percent(max(dearer('vsocb-lazy')))} % at uniform arrivals and 64 tokens" in page
    same = row("table-2", policy="vsocb", arrivals="zipf:0.8", unit=32)
    with_5 = row("figure-2", policy="vsocb")
    both = [f"{percent(r['saved_percent'])} ± {r['saved_se']:.1f}" for r in (same, with_5)]
    assert f"makes the saving {both[0]} instead of {both[1]}" in page
    best = row("figure-2", policy="static")["saved_percent"]
    ours = row("figure-2", policy="vsocb")["saved_percent"]
    assert f"would save {percent(best)} % in the setting of `figure-2`; VSOCB gets {percent(ours)} %" in page
    for r in swept:
        if r["saved_over_best_percent"] == 0.0:
            assert r["policy"] == "berkeley-multi"  # in all cells, says the page
    from knapcache_experiments import measured

    calls = measured.read("t5-3b-h200").seconds
    seconds = [float(s) for of_prompt in calls for s in of_prompt]
    spread = f"{min(seconds):.3f} to {max(seconds):.2f} s"
    lines = (measured.TABLES / "t5-3b-h200.csv").read_text(encoding="utf-8").splitlines()
    answered = sum(int(line.split(",")[3]) for line in lines if line[0].isdigit())
    assert f"{1e3 * sum(seconds) / answered:.2f} ms a token of the answer" in page
    assert f"{len(seconds):,} calls, {sum(seconds) / len(seconds):.2f} s on average, {spread}" in page


def test_numbers_of_the_errata() -> None:
    page = flat("docs/background/algorithm.md")
    printed = row("errata", repairs="none")
    assert f"regret of −{-printed['regret_mean']:,.0f}:" in page
    assert f"up to {printed['peak_occupancy']} units in a cache of 60" in page
    without_e7 = row("errata", repairs="all but E7")
    assert f"| {without_e7['regret_mean']:,.0f}, with {without_e7['wipes']:.0f} wipes" in page
    assert f"(E1 alone), it is {row('errata', repairs='E1')['regret_mean']:,.0f}" in page


def test_numbers_of_the_oracle() -> None:
    page = text("docs/background/oracle.md")
    bench = benchmark("oracle")

    def number(x: float | None) -> str:
        return "–" if x is None else f"{x:,.2g}" if x < 10 else f"{x:,.0f}"

    for b in bench["targets"]:
        amounts = f"{number(b['measured'])} | {number(b['worst'])}"
        check_lines(page, [f"| {b['metric']} | {amounts} | {b['target']} | {'yes' if b['met'] else 'no'} |"])
    for line in bench["summary"]:
        times = " | ".join(number(line[f"{what}_ms"]) for what in ("argsort", "solve", "worst", "beta", "warm"))
        assert line["n"] < 10**3 or f"| {line['n']:,} | {line['mode']} | {times} |" in page
    due = row("alpha", policy="vsocb", alpha=0.01)
    skipped = due["oracle_calls_skipped"] / (due["oracle_calls"] + due["oracle_calls_skipped"])
    assert f"α = 0.01 it is {100 * skipped:.0f} %" in page


def test_numbers_of_the_replays() -> None:
    page = text("docs/guides/lab.md").split("## Performance")[1].split("## Input formats")[0]
    bench = benchmark("replay", picture="replay")
    beside = [r for r in bench["rows"] if "speedup_over_libcachesim" in r]
    assert len(beside) >= 6
    for r in beside:
        rates = f"{r['requests_per_second'] / 1e6:.1f} | {r['libcachesim_requests_per_second'] / 1e6:.1f}"
        missed = f"{r['miss_ratio']:.4f} / {r['libcachesim_miss_ratio']:.4f}"
        line = f"| `{r['policy']}` | {r['capacity']} | {rates} | {r['speedup_over_libcachesim']:.1f} | {missed} |"
        check_lines(page, [line])
    check_lines(page, targets(bench))
    for policy in {d["policy"] for d in bench["decisions"]}:
        ns = [d["ns_per_request"] for d in bench["decisions"] if d["policy"] == policy]
        check_lines(page, [f"| `{policy}` | {' | '.join(f'{t:.0f}' for t in ns)} | {ns[-1] / ns[0]:.1f} |"])


def test_numbers_of_the_policies() -> None:
    page = text("docs/background/policies.md").split("## How they compare")[1].split("## Write a policy")[0]
    bench = benchmark("policies", picture="policies")
    online = {name for name, spec in registry.SPECS.items() if spec.online}
    assert bench["subject"] == "adaptive"
    answers = [c for c in bench["cells"] if c["trace"] != "agent_contexts"]
    assert len(answers) == 16
    for c in bench["cells"]:
        paid = bench["ratios"][c["trace"]][c["capacity"]]
        assert set(paid) == online | {"static", "belady", "pfoo"}, "the committed run is not of all policies"
        assert paid[c["best_other_name"]] == min(paid[p] for p in online - {bench["subject"]})
        assert all(paid["pfoo"] <= ratio + 1e-9 for ratio in paid.values()), "a bound that is none"
    assert {c["trace"] for c in bench["traffic"]} == set(KINDS)
    paid_of = [bench["ratios"][c["trace"]][c["capacity"]] for c in answers]
    mean = {
        rival: sum(paid["adaptive"] / paid[rival] for paid in paid_of) / len(paid_of)
        for rival in ("gdsf-cost", "gdsf-cost-trial", "lru")
    }
    assert f"be the one that is evicted, the mean is {mean['gdsf-cost-trial']:.3f}" in " ".join(page.split())
    readme = " ".join(text("README.md").split())
    assert f"**{100 - 100 * mean['lru']:.0f} % cheaper** than LRU" in readme
    assert f"{100 - 100 * mean['gdsf-cost']:.1f} % cheaper than GDSF with cost" in readme
    assert not [
        b for b in bench["targets"] if not b["met"] and "worlds" not in b["metric"] and "mean of" not in b["metric"]
    ]
    closed = f"closes {100 * bench['gap_closed']:.0f} % of the gap between LRU and the bound"
    assert closed in " ".join(page.split())
    assert benchmark("policies", picture="policies_worlds") == bench
    assert len(bench["cells"]) == 20
    assert list(bench["worlds"]["distributions"]) == ["development", "held-out", "unrestricted", "all"]
    check_lines(page, printed_tables("policies").splitlines())


def test_numbers_of_the_shared_store() -> None:
    page = text("docs/reference/redis-store.md").split("## Measured")[1]
    part = benchmark("cluster")["live"]
    assert part["scale"] == 1
    assert printed_tables("cluster").strip() in page, "docs/reference/redis-store.md lacks what --markdown prints"
    promised = ("failed", "wrong", "over the limit", "inconsistent", "fenced", "bills")
    assert [b for b in part["targets"] if not b["met"] and any(word in b["metric"] for word in promised)] == []


def test_seeds_of_the_worlds() -> None:
    page = " ".join(text("docs/background/policies.md").split())
    assert f"Seeds {DEVELOPMENT[0]} to {DEVELOPMENT[-1]} are for development" in page
    assert f"Seeds {HELD_OUT[0]} to {HELD_OUT[-1]} are held out" in page
    assert f"Seeds {UNRESTRICTED[0]} to {UNRESTRICTED[-1]} draw unrestricted worlds" in page
    assert f"has {REQUESTS[0]:,} to {REQUESTS[1]:,} requests" in page


def test_numbers_of_the_library() -> None:
    page = text("docs/guides/library.md").split("## Performance")[1].split("\n## ")[0]
    bench = benchmark("library", picture="library")
    form = "| {cache} | {version} | {storage} | {hit_us:.1f} | {miss_and_store_us:.0f} |"
    check_lines(page, (form.format(**r) for r in bench["rows"]))
    check_lines(page, ("| {request_bytes:,} | {key_us:.1f} | {hit_us:.1f} |".format(**r) for r in bench["sizes"]))
    check_lines(page, ("| {hit} | {us:.1f} |".format(**r) for r in bench["disk"]))
    check_lines(page, ("| settle, {settle}, median | {median_us:.0f} |".format(**r) for r in bench["settle"]))
    check_lines(page, targets(bench))
    plain = " ".join(page.split())
    assert f"hashing takes {bench['key_us']:.1f} µs" in plain
    assert f"{bench['disk'][0]['from_memory_percent']:.0f} % of the requests" in plain
    memory = bench["memory"]["stats"]
    assert f"{memory['requests']:,} requests, with {memory['recycled_ids']:,} recycled ids" in plain


def test_numbers_of_stored_streams() -> None:
    found = next(row for row in benchmark("streams")["by tokens"] if row["tokens"] == 24)
    assert found["entry: compact"] == found["entry: plain"] <= 2200
    sizes = f"has {found['verbatim']:,} bytes as OpenAI sends it and {found['compact']:,} bytes as it is stored"
    assert f"{sizes}, and its entry takes {found['entry: compact']:,} bytes" in flat("docs/reference/store.md")


def test_numbers_of_the_live_run() -> None:
    from knapcache_experiments import live

    page, settings = text("docs/background/live-run.md"), live.LiveSettings()
    expected = live.markdown(rows("live"))
    assert expected in page, f"the table in docs/background/live-run.md is not the committed result:\n{expected}"
    ours = row("live", policy="adaptive", repeat=None)
    assert ours["saved_seconds_percent"] > 0
    assert ours["saved_usd_percent"] > 0
    sizes: dict[int, list[int]] = {}
    for run in live.read(settings)["runs"]:
        for prompt, *_, size in run["requests"]:
            sizes.setdefault(prompt, []).append(size)
    assert len(sizes) == settings.queries
    needed = sum(sum(found) / len(found) for found in sizes.values())
    assert 0.38 < settings.capacity / needed < 0.46  # "holds about 42 %"


def test_numbers_of_the_other_experiments() -> None:
    page = flat("docs/background/algorithm.md")
    for policy in ("vsocb-lazy", "vsocb", "berkeley-multi", "berkeley"):
        assert f"T^{row('long-run', policy=policy)['slope']:.2f}" in page
    lazy, several = (row("long-run", policy=policy) for policy in ("vsocb-lazy", "berkeley-multi"))
    assert f"has {lazy['regret_mean']:.0f} ± {lazy['regret_se']:.0f}, BM {several['regret_mean']:,.0f} ±" in page
    excess = {(r["policy"], r["changes"]): 100 * r["excess_mean"] for r in rows("drift")}
    assert f"`vsocb-lazy` costs {excess['vsocb-lazy', 10]:.0f} % more than a clairvoyant" in page
    assert f"BM {excess['berkeley-multi', 10]:.0f} %, GDSF {excess['gdsf-cost', 10]:.0f} %" in page
    for policy in ("adaptive", "gdsf-cost"):
        assert all((policy, changes) in excess for changes in (0, 1, 3, 10, 30))
    assert f"`adaptive`, which learns how fast to forget, costs {excess['adaptive', 10]:.0f} % more" in page
    assert f"and {excess['adaptive', 0]:.1f} % without any" in page
    calls = {r["policy"]: r["oracle_calls"] for r in rows("one-hits") if r["share"] == 0.6}
    assert f"{calls['vsocb-as-printed']:,.0f} times there instead of {calls['vsocb-lazy']:,.0f}" in page


def test_the_claims_hold_in_the_committed_results() -> None:
    regret = {r["policy"]: r["regret_mean"] for r in rows("figure-1")}
    assert regret["vsocb"] <= 320
    assert regret["vsocb-lazy"] <= 200
    assert regret["berkeley"] >= 500
    assert regret["offline"] < regret["vsocb"]
    assert all(r["peak_occupancy"] <= 60 for r in rows("figure-1"))
    assert row("figure-2", policy="vsocb")["saved_percent"] >= 11
    for r in rows("table-2"):
        cell = {"arrivals": r["arrivals"], "unit": r["unit"]}
        assert r["peak_occupancy"] <= 100
        if r["policy"] in ("vsocb", "vsocb-apx", "berkeley", "berkeley-multi"):
            assert row("table-2", policy="adaptive", **cell)["cost_mean"] <= 1.01 * r["cost_mean"]
    assert all(r["within_bound"] for r in rows("alpha"))
    assert row("long-run", policy="vsocb-lazy")["slope"] <= 0.55
    excess = {(r["policy"], r["changes"]): r["excess_mean"] for r in rows("drift")}
    for changes in (0, 1, 3, 10, 30):
        assert excess["adaptive", changes] <= 0.5 * excess["gdsf-cost", changes]
    best = min(r["cost_mean"] for r in rows("drift") if r["changes"] == 0 and r["policy"] != "static")
    assert row("drift", policy="adaptive", changes=0)["cost_mean"] <= 1.03 * best


def test_numbers_and_options_of_the_local_model() -> None:
    from knapcache.demo import traffic as demo
    from knapcache.price.meter import USD_PER_SECOND
    from knapcache.proxy.settings import Settings
    from knapcache.proxy.upstream import embedded_model, model_server

    page, bench = text("docs/get-started/embedded-model.md"), benchmark("local_model")
    lines = [
        f"| from start to ready | {bench['load_seconds']:.2f} s |",
        f"| tokens read a second, prompt of {bench['prompt_tokens']} tokens "
        f"| {bench['prompt_tokens_per_second']:.0f} |",
        f"| tokens written a second, one answer at a time | {bench['answer_tokens_per_second']:.0f} |",
        f"| tokens written a second, two answers at a time, together "
        f"| {bench['concurrent_answer_tokens_per_second']:.0f} |",
        f"| memory of its process, the weights included | {bench['memory_mb']:.0f} MB |",
    ]
    check_lines(page, lines)
    off, on = benchmark("local_prompt_cache")["rows"]
    for name, key, form in (
        ("first request of each", "first_seconds", "{:.1f} s"),
        ("every later request", "alternating_seconds", "{:.1f} s"),
        ("tokens read again", "read_again", "{}"),
        ("memory of its process", "memory_mb", "{:.0f} MB"),
    ):
        assert f"| {name} | {form.format(off[key])} | {form.format(on[key])} |" in page
    assert (off["prompt_cache"], on["prompt_cache"]) == (0, Settings.model_fields["local_prompt_cache"].default)
    assert f"prompts of {off['prompt_tokens']:,} tokens" in page
    assert (model_server.SLOTS, model_server.DEFAULT_MAX_TOKENS, demo.DRIFT_INTERVAL, demo.TOP_RANKS) == (
        2,
        256,
        25,
        20,
    ), "docs/get-started/embedded-model.md says so"
    assert f"[prices.{embedded_model.MODEL_NAME}]\n" in page
    assert f"{USD_PER_SECOND:g} dollars per second" in page
    assert demo.EMBEDDED_MODEL == embedded_model.MODEL_NAME
    check_options(page, "demo")


def test_the_formats_on_the_page_on_upgrades_are_those_of_the_code() -> None:
    from knapcache.cache import snapshot, transfer
    from knapcache.features.content_log import file as content
    from knapcache.features.limits import sqlite_counts
    from knapcache.features.semantic import sqlite_log
    from knapcache.features.swap import log as swap
    from knapcache.model import REQUEST_VERSION
    from knapcache.proxy.events import history_file
    from knapcache.store.redis import membership
    from knapcache.store.sqlite import database

    formats = {
        "`cache.sqlite`": len(database.MIGRATIONS),
        "keys of requests, inside the entries": f"`{REQUEST_VERSION.decode()}`",
        "snapshot of the policy, in the cache file or the server": f"`{snapshot.MAGIC.decode().strip()}`",
        "entries in Valkey or Redis": membership.FORMAT,
        "`history.json`": history_file.VERSION,
        "`semantic.sqlite`": sqlite_log.KIND.format,
        "`limits.sqlite`": sqlite_counts.KIND.format,
        "`swap.sqlite`": swap.KIND.format,
        "`content.sqlite`": content.KIND.format,
        "export files (`knapcache export`)": transfer.VERSION,
    }
    table = text("docs/guides/upgrade.md").split("## File formats")[1].split("\n## ")[0]
    assert re.findall(r"^\| ([^|]+) \| ([^|]+) \| .+\|$", table, re.M)[1:] == [(k, str(v)) for k, v in formats.items()]


def test_the_second_hit_is_on_the_first_screen_of_the_readme() -> None:
    from knapcache.proxy.upstream.embedded_model import MODEL_NAME

    screen = text("README.md").splitlines()[:25]
    assert screen[screen.index("x-knapcache: hit") - 1] == "x-knapcache: miss"
    assert any(f'"model": "{MODEL_NAME}"' in line for line in screen)


def test_numbers_of_the_first_start() -> None:
    page, bench = text("docs/get-started/installation.md"), benchmark("first_start")
    lines = [
        f"| install | {bench['packages']} packages, {bench['disk_mb']:.0f} MB, {bench['install_s']:.0f} s |",
        f"| port accepts connections | {bench['accepting_after_install_s']:.1f} s after the installation |",
        f"| first answer of the local model (32 tokens) | {bench['first_answer_after_install_s']:.1f} s after the "
        "installation |",
        f"| first hit | {bench['first_hit_ms']:.1f} ms |",
        f"| policies compiled, in the background | {bench['compiled_after_install_s']:.0f} s after the installation |",
        f"| later starts: port accepts connections | {bench['later_start_accepting_s']:.1f} s |",
    ]
    check_lines(page, lines)


def test_numbers_of_the_proxy() -> None:
    page = text("docs/guides/proxy.md")
    bench = benchmark("proxy")
    hits = {r["server"]: f"{r['requests_per_second']:,.0f}" for r in bench["rows"]}
    (added,) = (f"{r['plain_added_us'] / 1e3:.2f} ms" for r in bench["misses"] if r["path"] == "knapcache")
    compared, readme = flat("docs/background/comparison.md"), flat("README.md")
    assert f"it served {hits['knapcache']} hits a second, LiteLLM's proxy {hits['LiteLLM proxy']} and" in compared
    assert f"GPTCache's server {hits['GPTCache server']} (" in compared
    assert f"knapcache adds {added} to a miss" in compared
    assert f"added to a miss: {added}" in readme
    for r in bench["rows"]:
        if r["server"] != "canned":
            assert f"| {r['server']} | {r['requests_per_second']:,.0f} | {r['cpu_us']:,.0f} |" in page
    for r in bench["misses"]:
        assert f"| {r['path']} | {r['plain_p50_us'] / 1e3:.2f} | {r['plain_added_us'] / 1e3:.2f} |" in page
    check_lines(page, targets(bench, ",.3g"))
    soak = benchmark("soak")
    (memory,) = (r["measured"] for r in soak["targets"] if "memory" in r["metric"])
    assert f"memory grew by {memory:.1f} % in the last two thirds" in flat("docs/guides/proxy.md")
    assert soak["misdelivered"] == soak["failed"] == soak["timed_out"] == 0
