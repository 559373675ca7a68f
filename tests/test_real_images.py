"""What is published of the study natural_zoo: its tables are those of its results."""

import pandas as pd
import pytest
import real_images

from fpl_tune import config
from fpl_tune.core.paths import shipped

RESULTS = pd.read_csv(real_images.FOLDER / "results.csv")
TUNED = RESULTS[RESULTS["role"] == "tuned"]
TABLE = pd.read_csv(real_images.FOLDER / "table.csv", index_col="method")
ROWS = config.read_mapping(shipped("conf", "tuned.yaml"), "The table of rates")


@pytest.mark.parametrize("setting", ["PACS", "Caltech101"])
def test_the_table_has_means_over_five_fresh_seeds(setting: str) -> None:
    by_method = TUNED[TUNED["setting"] == setting].groupby("variant")["test/acc_mean"]
    assert set(by_method.size()) == {5}
    found = TABLE.loc[TABLE.index != "zeroshot", f"{setting} mean"]
    pd.testing.assert_series_equal(by_method.mean()[found.index], found, check_names=False)


@pytest.mark.parametrize("setting", ["PACS", "Caltech101"])
def test_optim_tuned_has_the_rates_that_were_chosen(setting: str) -> None:
    chosen = TUNED[TUNED["setting"] == setting].groupby("method")["optim.lr"].first()
    rows = ROWS[f"natural_zoo, {setting}"]["rows"]
    assert {name: row["lr"] for name, row in rows.items()} == pytest.approx(chosen[[*rows]].to_dict(), rel=0.005)


def test_the_readme_says_how_far_fedpgp_is_below_promptfl_at_published_settings() -> None:
    published = RESULTS[(RESULTS["role"] == "published") & (RESULTS["setting"] == "PACS")]
    means = published.groupby("variant")["test/acc_mean"].mean()
    said = f"FedPGP is {100 * (means['promptfl'] - means['fedpgp']):.0f} points below PromptFL on PACS"
    assert said in " ".join((real_images.ROOT / "README.md").read_text(encoding="utf-8").split())
