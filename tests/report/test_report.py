"""The report: sentences by rule, escaping, policy, size, files, and what a browser makes of it."""

import base64
import hashlib
import html
import json
import re
import shlex
import time
from dataclasses import replace

import bundle
import numpy as np
import pytest

import plan_results
import quantized_results
import range_results
import synthetic_report as synthetic
import trace_results
from browser import CHROMIUM, HOSTILE, Page, browse
from outlierlens.detection.rules import Rule
from outlierlens.errors import BadFile, BadInput
from outlierlens.report import ReportPair, files, render, rerender, write
from outlierlens.report.files import charts_of
from outlierlens.report.page import render_both, verdicts
from outlierlens.results import document as results
from outlierlens.results.rows import Estimate
from outlierlens.view.render import escaped_json
from outlierlens.view.section import factor, listed, percent


@pytest.fixture(scope="module")
def data():
    return synthetic.report_data()


@pytest.fixture(scope="module")
def page(data):
    return render(data)


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    pytest.importorskip("vl_convert")
    return write(data, tmp_path_factory.mktemp("runs") / "smollm2")


# Sentences


def test_what_quantization_was_measured_to_cost_stands_in_place_of_the_rule(data):
    measured = quantized_results.quantized()
    step, more = (
        one for one in synthetic.changed(data, more=(of_report(measured),)).advice() if one.topic == "quantize"
    )
    assert step.text.lower() == f"{measured.verdict}.".lower()
    assert step.because == "measured on 2 texts of d.txt (40 tokens)"
    assert more.commands == (f"outlierlens plan smollm2-135m --scheme {measured.worst}",)
    free = quantized_results.quantized(("int8-channel/int8-token",))
    (step,) = (one for one in synthetic.changed(data, more=(free,)).advice() if one.topic == "quantize")
    assert step.commands == ()


def test_a_plan_is_the_advice_about_bits_where_there_is_one_and_says_where_nothing_helps(data):
    planned = plan_results.found()
    both = synthetic.changed(data, more=(quantized_results.quantized(), planned))
    second, first = (one for one in both.advice() if one.topic == "quantize")
    said = "Keep 1 entry (5.0 % of the weights) in 16 bits: +0.8 nats per token → +0.3 (random +0.8)."
    assert first.text == said
    assert "most per byte gives layers.1.mlp.down_proj (inputs): +0.48 nats per token for 60 bytes" in first.because
    assert not any("outlierlens plan" in line for line in second.commands)  # it was made
    none = replace(planned, steps=(), kept=(), regained=Estimate(0.0, 0.0, 0.0))
    (only,) = (one for one in synthetic.changed(data, more=(none,)).advice() if one.topic == "quantize")
    assert "no single entry surely gives back 0.01 or more" in only.text
    assert only.commands == ()


def of_report(found):
    """A finding of the model that the report is of."""
    return replace(found, provenance=synthetic.PROVENANCE)


def ranges_of(sizes, module=""):
    rows = (range_results.row(kind, "1", size, coarseness=size / 127 / 0.5) for kind, size in sizes.items())
    found = range_results.found(*(replace(row, module=module) if row.kind == "gate/up" else row for row in rows))
    return of_report(found)


@pytest.mark.parametrize(
    ("sizes", "norm_site", "text", "commands"),
    [
        ({"stream": 16376.0}, "read", "Run it in fp16 as it is: fp16 has 4.00 times headroom.", ()),
        ({"stream": 32752.0}, "read", "Keep it in bfloat16 or float32: fp16 has 2.00 times headroom. Or write", ("fp16",)),
        ({"stream": 131008.0}, "read", "Keep it in bfloat16 or float32: fp16 overflows by 2.00 times. Or write", ("fp16",)),
        ({"stream": 131008.0}, "stream", "Keep it in bfloat16 or float32: fp16 overflows by 2.00 times.", ()),
        ({"k": 131008.0, "stream": 1.0}, "stream", "Keep it in bfloat16 or float32: fp16 overflows by 2.00 times.", ("fp16",)),
        ({"logits": 131008.0, "stream": 1.0}, "read", "Keep it in bfloat16 or float32: fp16 overflows by 2.00 times.", ()),
    ],
)  # fmt: skip
def test_advice_about_fp16_rests_on_the_measured_range(data, sizes, norm_site, text, commands):
    found = replace(ranges_of(sizes), normed=("model",) if norm_site == "stream" else ())
    given = synthetic.changed(data, more=(found,))
    (step,) = (one for one in given.advice() if one.topic == "range")
    assert step.text.startswith(text)
    assert ("Or write" in step.text) == bool(commands)
    assert step.commands == tuple(
        f"outlierlens repair smollm2-135m --fit {one} -o smollm2-135m-{one}" for one in commands
    )
    assert "stream of layer 1, over 9 texts" in step.because or any(
        f"{kind} of layer 1" in step.because for kind in sizes
    )


def test_advice_about_int8_rests_on_the_measured_range(data):
    """Steps of a tensor are its largest / 127; those of the MLP's inside are three medians, those of the stream one."""
    sizes = {"stream": 127 * 0.5, "gate/up": 1.0, "MLP inner": 3 * 127 * 0.5}
    given = synthetic.changed(data, more=(ranges_of(sizes, "model.layers.1.mlp.up_proj"),))
    (step,) = (one for one in given.advice() if one.topic == "quantize")
    assert "coarsest for the MLP inner of layer 1, where no dimension of the stream lies" in step.text
    assert step.because == "one step there is 3.00 times the median |x|, over 9 texts"
    fits = "outlierlens repair smollm2-135m --fit int8 -o smollm2-135m-int8"
    assert step.commands == ("outlierlens quantize smollm2-135m", fits)
    fine = synthetic.changed(data, more=(ranges_of(sizes | {"MLP inner": 2 * 127 * 0.5}),))
    assert [one for one in fine.advice() if one.topic == "quantize"] == []


def test_every_command_of_an_advice_can_be_run():
    from outlierlens.cli.app import read

    bare = synthetic.scan(synthetic.stack_scan(needles=()))
    cases = [synthetic.report_data(), synthetic.report_data(observed=False, damages=())]
    cases += [synthetic.report_data(sweeps=(synthetic.sweep(),), damages=()), synthetic.report_data(scan_result=bare)]
    cases += [synthetic.report_data(scan_result=bare, observed=False, damages=())]
    encoder, decoder = (replace(synthetic.stack_scan(), stack=name) for name in ("encoder", "decoder"))
    cases += [synthetic.report_data(scan_result=synthetic.scan(encoder, decoder), damages=())]
    cases += [synthetic.report_data(more=(quantized_results.quantized(),))]
    sizes = {"stream": 1e5, "gate/up": 1.0, "MLP inner": 9e4}
    cases += [synthetic.report_data(more=(ranges_of(sizes, "model.layers.1.mlp.up_proj"),))]
    said = {command for data in cases for step in data.advice() for command in step.commands}
    assert {command.split()[1] for command in said} == {
        "plan", "prune", "quantize", "embed", "observe", "report", "range", "repair", "trace",
    }  # fmt: skip
    assert "outlierlens prune protect smollm2-135m --export torch-pruning --dims 100,247,507 --stack decoder" in said
    for command in said:
        read(shlex.split(command)[1:])  # raises for an option or a value that is not there


def test_nothing_found_and_nothing_else_measured():
    scan = synthetic.scan(synthetic.stack_scan(needles=()))
    bare = synthetic.report_data(scan_result=scan, observed=False, damages=())
    assert bare.finding() == (
        "smollm2-135m has no outlier dimension in its weights: none is 3 standard deviations or more from the mean in "
        "15 of 30 layers.",
    )
    assert [step.topic for step in bare.advice()] == ["nothing", "trust"]
    assert "Run observe and ablate" in bare.advice()[1].text


def test_found_but_no_damage_measured():
    bare = synthetic.report_data(observed=False, damages=())
    assert bare.finding()[1] == "The effect of ablating them was not measured."
    assert [step.topic for step in bare.advice()] == ["prune", "trust"]
    assert bare.advice()[0].text == (
        "Until it is measured what they do, leave dimensions 100, 247 and 507 alone when you prune or edit."
    )


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("/tmp/models/mpnet/", "mpnet"),
        ("owner/name", "owner/name"),
        ("./x.gguf", "x.gguf"),
        ("C:\\m\\bert", "bert"),
        ("/", "/"),
    ],
)
def test_a_path_is_shown_by_its_last_part(given, shown):
    data = synthetic.report_data(observed=False, damages=())
    data = replace(data, provenance=replace(data.provenance, model=given))
    assert data.model == shown
    assert data.finding()[0].startswith(f"{shown} has 3")


def test_found_but_harmless():
    damage = synthetic.damage(chosen=0.003, random=0.01, fills=False)
    harmless = synthetic.report_data(observed=False, damages=(damage,))
    assert damage.judged == "harmless"
    assert " no protection" in harmless.advice()[0].text


def test_an_interval_that_holds_zero_is_no_damage():
    damage = synthetic.damage(chosen=0.5, random=0.001)
    chosen = replace(damage.chosen, change=replace(damage.chosen.change, low=-0.1))
    assert replace(damage, conditions=(damage.intact, chosen)).judged == "harmless"


def test_a_damage_that_few_random_sets_cannot_confirm_is_not_claimed():
    damage = synthetic.damage(chosen=0.5)
    control = synthetic.family("random", [0.001, 0.002, 0.003, -0.001], damage.chosen.change)
    few = synthetic.report_data(observed=False, damages=(replace(damage, families=(control,)),))
    assert few.damages[0].judged == "unclear"
    assert [one.word for one in verdicts(few)][1] == "unclear"
    assert [step.topic for step in few.advice()] == ["nothing", "trust"]
    assert replace(damage, families=()).judged == "unclear"


def test_infinite_loss_is_said():
    damage = synthetic.damage(fills=False)
    chosen = replace(damage.chosen, change=Estimate(float("inf")), perplexity=float("inf"))
    data = synthetic.report_data(observed=False, damages=(replace(damage, conditions=(damage.intact, chosen)),))
    assert data.finding()[1] == "With 100, 247, 507 ablated the causal loss is infinite or undefined."
    assert "×∞" in render(data)


def test_weak_evidence_is_said():
    stack = synthetic.stack_scan()
    weak = replace(stack.outliers[0], p_holm=0.4)
    stack = replace(stack, outliers=(weak, *stack.outliers[1:]))
    text = synthetic.report_data(scan_result=synthetic.scan(stack), observed=False, damages=()).finding()
    assert text[1] == f"Chance is not excluded for {weak.dim}: corrected p up to 0.4."


def test_two_streams_are_named_and_a_rank_rule_counts_only_what_chance_does_not_explain():
    encoder = replace(synthetic.stack_scan(needles=(5,), n_layers=6, hidden_size=64), stack="encoder")
    decoder = replace(synthetic.stack_scan(needles=(), n_layers=6, hidden_size=64), stack="decoder")
    both = synthetic.report_data(scan_result=synthetic.scan(encoder, decoder), observed=False, damages=())
    assert both.finding()[0] == "smollm2-135m: the encoder has 1 outlier dimension: 5; the decoder has none."
    page = render(both)
    assert 'id="chart-weights-scale"' in page
    assert 'id="chart-1-weights-scale"' in page
    chance = replace(encoder, outliers=(replace(encoder.outliers[0], p_holm=0.9),))
    ranked = synthetic.report_data(scan_result=synthetic.scan(chance, rule=Rule("luo")), observed=False, damages=())
    assert "has no outlier dimension in its weights: none ranks among the first 6" in ranked.finding()[0]


def test_a_massive_dimension_is_to_be_traced_until_it_is():
    data = synthetic.report_data()
    (step,) = (one for one in data.advice() if one.topic == "explain")
    assert step.commands == ("outlierlens trace smollm2-135m --dims 507",)
    found = trace_results.found()
    traced = replace(found, about=replace(found.about, dims=("507",), stack=data.observation.stacks[0].stack))
    told = synthetic.changed(data, more=(traced,))
    assert not any(one.topic == "explain" for one in told.advice())
    assert "The life of a dimension: 507</h2>" in render(told)


def test_words_for_numbers():
    assert [factor(x) for x in (0, np.log(12_345), np.log(3.2e9), 2000)] == ["1.00", "12,300", "3.2·10⁹", "3.9·10⁸⁶⁸"]
    assert [percent(x) for x in (0.5, 0.9999, 1.0)] == ["50 %", "over 99 %", "100 %"]
    assert listed([1]) == "1"
    assert listed(list(range(20))).endswith("11 and 8 more")


# The page


def test_the_policy_allows_exactly_the_two_scripts_of_the_page(page):
    parsed = Page(page)
    (policy,) = [m["content"] for m in parsed.all("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    directives = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    hashes = [
        f"'sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}'"
        for attributes, code in zip(parsed.all("script"), parsed.scripts, strict=True)
        if attributes.get("type") != "application/json"
    ]
    assert directives["script-src"].split() == hashes
    assert len(hashes) == 2
    assert directives["default-src"] == directives["connect-src"] == "'none'"
    assert "unsafe-eval" not in policy


def test_the_page_loads_nothing_and_is_small(page):
    parsed = Page(page)
    assert not [a for tag, a in parsed.elements if tag in ("link", "img", "iframe", "object", "embed", "base")]
    assert not [a for tag, a in parsed.elements for name in ("src", "srcset", "style") if "url(" in (a.get(name) or "")]
    assert not [a for _, a in parsed.elements if "src" in a]
    style = re.search(r"<style>(.*?)</style>", page, re.S).group(1)
    assert "@import" not in style
    assert "url(" not in style
    specs = json.loads(next(s for s in parsed.scripts if s.startswith("{")))
    assert not [s for s in specs.values() if '"url":' in json.dumps(s)]
    assert len(page.encode()) < 4e6


def test_every_picture_has_words_and_numbers(page):
    parsed = Page(page)
    pictures = [a for a in parsed.all("div") if "data-chart" in a]
    identifiers = {a["id"] for _, a in parsed.elements if "id" in a}
    assert len(pictures) == 6
    assert len(parsed.all("details")) == len(parsed.all("figcaption")) == 6
    for picture in pictures:
        assert picture["role"] == "img"
        assert picture["aria-label"]
        assert picture["aria-describedby"] in identifiers
    assert len(identifiers) == len([a for _, a in parsed.elements if "id" in a])  # no id twice


def test_blanks_are_marked_by_sign_and_word_not_by_colour_alone(page):
    marks = re.findall(
        r'<mark class="(\w+)" title[^>]*><i aria-hidden="true">(.)</i><bdi>(.*?)</bdi>(.*?)</mark>', page
    )
    assert [(kind, sign, word) for kind, sign, word, _ in marks[-3:]] == [
        ("other", "≠", "the"), ("nonsense", "✗", "##ly"), ("nonsense", "✗", ","),
    ]  # fmt: skip
    assert all(f"({kind})" in spoken for kind, _, _, spoken in marks)


def test_a_word_that_is_not_repeated_is_marked_and_explained_where_there_is_one(page):
    assert "Changed: a word that is not a blank" not in page
    assert '<mark class="changed"' not in page
    damage = synthetic.damage()
    *others, last = damage.replies
    fill = replace(last.fill, blanks=(*last.fill.blanks[:2], replace(last.fill.blanks[2], kind="changed")))
    changed = render(synthetic.report_data(damages=(replace(damage, replies=(*others, replace(last, fill=fill))),)))
    assert changed.count('<mark class="changed"') == 1
    assert '<span class="hidden"> (changed)</span>' in changed
    assert "Changed: a word that is not a blank" in changed


def hostile_data():
    tokens = (HOSTILE, *synthetic.TOKENS[1:], "\u2028", "\u202egnp.exe", "\x00", "\ud800", "<!--<script>")
    data = synthetic.report_data(observed=synthetic.observation(n_layers=6, hidden_size=520, tokens=tokens))
    damage = data.damages[0]
    fills = [
        replace(
            reply.fill,
            pieces=(HOSTILE, *reply.fill.pieces[1:]),
            blanks=tuple(replace(b, filled=HOSTILE, intact=HOSTILE) for b in reply.fill.blanks),
        )
        for reply in damage.replies
    ]
    replies = tuple(
        replace(reply, fill=fill, begins=HOSTILE, continued=HOSTILE)
        for reply, fill in zip(damage.replies, fills, strict=True)
    )
    stack = replace(data.scan.stacks[0], site=HOSTILE, notes=(HOSTILE,))
    return synthetic.changed(
        data,
        provenance=replace(
            data.provenance, model=HOSTILE, command=HOSTILE, libraries={HOSTILE: HOSTILE}, dtype=HOSTILE
        ),
        scan=replace(data.scan, model_type=HOSTILE, source=HOSTILE, stacks=(stack,)),
        observation=replace(data.observation, about=replace(data.observation.about, data=HOSTILE)),
        damages=(replace(damage, about=replace(damage.about, data=HOSTILE, stack=HOSTILE), replies=replies),),
        notes=(HOSTILE,),
    )


def test_text_of_a_model_never_becomes_markup():
    page = render(hostile_data())
    parsed = Page(page)
    assert len(parsed.scripts) == 3
    assert not parsed.all("img")
    assert not [a for _, a in parsed.elements if any(name.startswith("on") for name in a)]
    assert "<img" not in page.replace(parsed.scripts[1], "")
    assert HOSTILE in html.unescape(parsed.text)
    specs = parsed.scripts[0]
    assert not set("<>&\u2028\u2029") & set(specs)
    tokens = json.loads(specs)["token-vectors"]["layer"][2]["data"]["values"]
    assert tokens[0]["token"] == HOSTILE
    assert "\u202e" not in page
    assert "\x00" not in page


def test_json_in_a_script_reads_back_as_it_was():
    value = {"a": "</script>&\u2028\u2029<!--", "b": [1, None, "é"]}
    assert json.loads(escaped_json(value)) == value
    with pytest.raises(ValueError, match="Out of range"):
        escaped_json(float("nan"))


def test_the_runtime_is_what_vl_convert_supplies_and_cannot_end_its_element():
    convert = pytest.importorskip("vl_convert")
    runtime = bundle.RUNTIME.read_text("utf-8")
    assert not re.search(r"</script|<!--|<script", runtime, re.IGNORECASE)
    assert "BSD-3-Clause" in runtime[:300]
    assert "Interactive Data Lab" in bundle.RUNTIME.with_name("vega.LICENSES.txt").read_text("utf-8")
    assert bundle.defuse("'</SCRIPT><!--'") == r"'\x3C/SCRIPT>\x3C!--'"
    if f"vl-convert {convert.__version__}." in runtime[:300]:
        assert bundle.bundle() == runtime


def test_eighty_layers_of_8192_dimensions_stay_small_and_quick():
    large = synthetic.large_report()
    start = time.process_time()
    page = render(large)
    assert time.process_time() - start < 5
    assert len(page.encode()) < 4e6
    assert max(len(json.dumps(chart.spec)) for chart in charts_of(large)) < 400_000
    assert len(render_both(ReportPair((large, large))).encode()) < 6e6
    assert "the strongest dimensions" not in page


# Files


def test_a_run_directory_holds_page_results_charts_and_manifest(run, data):
    names = {path.relative_to(run.directory).as_posix() for path in run.directory.rglob("*") if path.is_file()}
    manifest = json.loads((run.directory / "manifest.json").read_text("utf-8"))
    assert names == {*manifest["files"], "manifest.json"}
    assert {path.relative_to(run.directory).as_posix() for path in run.files} == names
    assert {f"charts/ablation.{kind}" for kind in ("svg", "png", "vl.json")} <= names
    for name, entry in manifest["files"].items():
        content = (run.directory / name).read_bytes()
        assert entry == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    assert manifest["command"] == data.provenance.command
    assert manifest["finding"][0] == data.finding()[0]
    assert manifest["libraries"]["numpy"] == "2.4.6"
    assert manifest["dtype"] == "bfloat16"
    assert "numpy 2.4.6; computed in bfloat16" in (run.directory / "report.html").read_text("utf-8")
    assert manifest["format_version"] == results.FORMAT_VERSION
    assert run.notes == ()


def test_the_page_is_made_again_from_its_results(run):
    page = (run.directory / "report.html").read_text("utf-8")
    assert rerender(run.directory / "results.json") == page
    assert rerender(run.directory) == page


def test_a_run_is_not_overwritten_unless_asked_and_then_leaves_nothing_stale(monkeypatch, tmp_path):
    monkeypatch.setattr(files, "can_export", lambda: False)
    directory = tmp_path / "run"
    one, two = (synthetic.damage(fills=False), synthetic.damage(chosen=1.0, fills=False))
    written = write(synthetic.report_data(observed=False, damages=(one, two)), directory)
    assert written.notes == (files.NO_PICTURES,)
    assert (directory / "charts" / "ablation-2.vl.json").is_file()
    assert not list(directory.rglob("*.svg"))
    (directory / "charts" / "mine.svg").write_text("kept")
    with pytest.raises(BadInput, match=r"holds manifest\.json already; choose another directory or pass --overwrite"):
        write(synthetic.report_data(observed=False, damages=(one,)), directory)
    (directory / "rows.jsonl").write_text("{}\n")
    data = synthetic.report_data(observed=False, damages=(one,))
    write(data, directory, overwrite=True, also=[directory / "rows.jsonl"])
    assert not (directory / "charts" / "ablation-2.vl.json").exists()
    assert (directory / "charts" / "mine.svg").read_text() == "kept"
    assert "rows.jsonl" in json.loads((directory / "manifest.json").read_text("utf-8"))["files"]
    assert not [path for path in directory.rglob("*") if path.name.endswith(".part")]


def test_a_manifest_cannot_name_a_file_elsewhere_for_removal(monkeypatch, tmp_path):
    monkeypatch.setattr(files, "can_export", lambda: False)
    directory, victim = tmp_path / "run", tmp_path / "victim"
    directory.mkdir()
    victim.write_text("kept")
    names = ["../victim", "charts/../../victim", str(victim), "charts/..", "rows.jsonl"]
    (directory / "rows.jsonl").write_text("kept")
    as_it_is = dict.fromkeys(names, files._entry(b"kept"))
    for said in (as_it_is, names, [[3, 4]], 5):
        (directory / "manifest.json").write_text(json.dumps({"files": said}))
        write(synthetic.report_data(observed=False, damages=()), directory, overwrite=True)
        assert victim.read_text() == (directory / "rows.jsonl").read_text() == "kept"


def test_what_cannot_be_rendered_is_said(tmp_path):
    with pytest.raises(BadFile, match="no such result file"):
        rerender(tmp_path / "results.json")
    results.save(synthetic.scan(), tmp_path / "scan.json")
    with pytest.raises(BadFile, match="holds a Scan, not a report's results"):
        rerender(tmp_path / "scan.json")
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="is a file; name a directory"):
        write(synthetic.report_data(observed=False, damages=()), tmp_path / "file")


# A real browser


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH")
def test_a_browser_draws_every_chart_within_the_policy(data, tmp_path):
    stack = synthetic.stack_scan(needles=(5, 9), n_layers=6, hidden_size=64, bias=True)
    encoder = synthetic.report_data(scan_result=synthetic.scan(stack), damages=data.damages)
    document, console = browse(render(encoder), tmp_path)
    assert 'data-charts="ready"' in document
    assert document.count('data-drawn="yes"') == 7
    assert "could not be drawn (" not in Page(document).text
    assert console == []  # no refusal by the policy, no warning of the charts


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH")
def test_a_browser_runs_nothing_of_a_hostile_text(tmp_path):
    document, console = browse(render(hostile_data()), tmp_path)
    assert document.count('data-drawn="yes"') == 6
    assert not Page(document).all("img")
    assert console == []
