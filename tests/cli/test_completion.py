"""Completion of job ids where there is nothing to complete."""

from brim.cli.completion import complete_dependency, complete_job, complete_open_job


def test_without_a_controller_nothing_is_offered_and_nothing_said(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("BRIM_RUNTIME", str(tmp_path))
    assert complete_job("") == complete_open_job("1") == complete_dependency("3,") == []
    (tmp_path / "api.sock").write_text("", encoding="utf-8")
    assert complete_job("") == []
    assert capfd.readouterr() == ("", "")
