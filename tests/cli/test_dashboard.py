import json
import sys

import pytest
import wandb
from wandb_workspaces.workspaces import Workspace

from lightning_gep.cli.dashboard import main
from lightning_gep.loggers import wandb as wandb_logger
from tests.wandb_files import offline  # noqa: F401

pytestmark = pytest.mark.usefixtures("offline")


def test_the_definition_needs_no_account(tmp_path, capsys):
    main(["--project", "mine", "--json", str(tmp_path / "dashboard.json")])
    assert json.loads((tmp_path / "dashboard.json").read_text("utf-8"))["project"] == "mine"
    assert capsys.readouterr() == ("", "")
    main(["--entity", "us", "--json", "-"])
    view = json.loads(capsys.readouterr().out)
    assert (view["entity"], view["project"]) == ("us", "lightning-gep")


def test_without_an_account_it_says_so_in_one_line(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["--project", "mine"])
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "gep-dashboard: Not logged in to W&B. Run `wandb login`" in err


def test_without_the_package_it_names_the_extra(monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "lightning_gep.loggers.dashboard", raising=False)
    for name in [name for name in sys.modules if name.split(".")[0] == "wandb_workspaces"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "wandb_workspaces", None)
    with pytest.raises(SystemExit, match="2"):
        main(["--json", "-"])
    assert "pip install 'lightning-gep[dashboard]'" in capsys.readouterr().err


class Account:
    default_entity = "me"


@pytest.mark.parametrize(("arguments", "entity"), [([], "me"), (["--entity", "us"], "us")])
def test_logged_in_it_is_saved_and_its_address_printed(monkeypatch, capsys, arguments, entity):
    saved = []
    monkeypatch.setattr(wandb_logger, "logged_in", lambda: True)
    monkeypatch.setattr(wandb, "Api", Account)
    monkeypatch.setattr(Workspace, "save", lambda workspace: saved.append(workspace) or workspace)
    monkeypatch.setattr(Workspace, "url", "https://example.org/view")
    main(["--project", "mine", *arguments])
    (workspace,) = saved
    assert (workspace.entity, workspace.project) == (entity, "mine")
    assert capsys.readouterr().out == "https://example.org/view\n"
