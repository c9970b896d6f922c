"""The docs site: every link leads somewhere, what is generated is complete, no page loads anything from elsewhere."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import vit_jax
from vit_jax.config.flags import flags
from vit_jax.config.run import LoraConfig, OptimConfig
from vit_jax.models.networks import NETWORKS
from vit_jax.tasks.table import TASKS

ROOT = Path(__file__).parents[1]


def module(name):
    """A file of docs/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    sys.modules[name] = loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of all pages."""
    pages, folder = module("pages"), tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "SITE", folder)
        patch.syspath_prepend(str(ROOT / "docs"))
        assert pages.main([]) == 0
    return folder


def test_every_link_between_pages_leads_to_a_file_of_the_site(site):
    found = 0
    for page in site.rglob("*.md"):
        text = re.sub(r"^```.*?^```$|`[^`\n]+`|<pre>.*</pre>", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
        for link in re.findall(r"\]\(([^)\s#]+)", text):
            if not re.match("[a-z]+:", link):
                assert (page.parent / link).is_file(), f"{page.relative_to(site)}: {link}"
                found += 1
    assert found > 100


def test_a_link_to_what_is_not_there_is_an_error():
    with pytest.raises(FileNotFoundError, match=r"there is no tusks\.py"):
        module("pages").linked("see [this](tusks.py)", "docs/guide.md")


def test_links_to_lines_of_code_lead_near_them_in_the_repository_as_well():
    """The site has the numbers of today; those in the repository may lag behind by some lines."""
    pages, found = module("pages"), 0
    for page in pages.with_links_to_lines():
        text = page.read_text(encoding="utf-8")
        for old, new in zip(
            *(re.findall(r"\.py#L(\d+) ", t) for t in (text, pages.with_lines(text, page.parent))), strict=True
        ):
            assert abs(int(old) - int(new)) <= 30, f"{page.name}: python docs/pages.py --lines"
            found += 1
    assert found > 40


@pytest.mark.parametrize("lines", [["a = 1"], ["b = 2", "b = 2"]])
def test_a_link_to_a_line_that_is_not_there_or_not_alone_is_an_error(tmp_path, lines):
    (tmp_path / "x.py").write_text("\n".join(lines))
    with pytest.raises(ValueError, match="on the lines"):
        module("pages").with_lines('[b](x.py#L7 "b = 2")', tmp_path)


def test_the_pages_have_every_public_name_and_every_option(site):
    api = (site / "api.md").read_text(encoding="utf-8")
    assert {*re.findall(r'heading: "vit_jax\.(\w+)"', api)} == {*vit_jax.__all__} - {"__version__"}
    options = "".join(page.read_text(encoding="utf-8") for page in (site / "options").glob("*.md"))
    parts = {"optim": OptimConfig, "lora": LoraConfig} | {f"model {name}": each for name, each in NETWORKS.items()}
    for spec in TASKS.values():
        parts |= {f"data {spec}": spec.data, f"augment {spec}": spec.augment, f"loss {spec}": spec.loss}
    shown = {*re.findall(r"^\| `--([\w.-]+)` \|", options, re.M)}
    assert {f"{prefix.split()[0]}.{flag}" for prefix, part in parts.items() for flag in flags(part)} <= shown
    assert {"epochs", "seed", "ema", "max-steps"} <= shown


def test_the_site_is_built_without_a_warning_and_loads_nothing_from_elsewhere(site, tmp_path):
    for package in ("mkdocs", "material", "mkdocstrings_handlers.python"):
        pytest.importorskip(package, reason="pip install '.[docs]'")
    shutil.copytree(site, tmp_path / "build" / "docs")
    for each in ("mkdocs.yml", "vit_jax"):
        (tmp_path / each).symlink_to(ROOT / each)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    built = tmp_path / "build" / "site"
    pages = {page: page.read_text(encoding="utf-8") for page in built.rglob("*.html")}
    assert len(pages) > 50
    for page, text in pages.items():
        loaded = re.findall(r"<(?:script|img|link|iframe)\b[^>]*?(?:src|href)=[\"']?(?:https?:)?//[^>]*>", text)
        assert not [tag for tag in loaded if "canonical" not in tag], page
    styles = "".join(sheet.read_text(encoding="utf-8") for sheet in built.rglob("*.css"))
    assert not re.findall(r"(?:url\(|@import )[\"']?(?:https?:)?//", styles)
