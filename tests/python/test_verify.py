"""capstan.verify(): modules that train the same in every way, faults of modules, and calls that cannot be made."""

import os
import subprocess
import sys
import unittest

import capstan
import verify_models as models
from support import HERE, Fixture, config

CONFIG = {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.1}}}


def verify(build_model, data=models.samples, **more):
    return capstan.verify(build_model, more.pop("config", CONFIG), data, verbose=False, **more)


def rows(found):
    return {one["name"]: one for one in found.variants}


class EveryWay(Fixture):
    def test_a_model_of_transformers_trains_the_same_at_stage_3(self):
        page = os.path.join(os.environ["CAPSTAN_TEST_FOLDER"], "page.html")
        found = verify(models.gpt2, models.sentences, only="stage 3, 2", html=page)
        self.assertTrue(found.kept, str(found))
        self.assertEqual([one["name"] for one in found.variants],
                         ["plain: stage 0, 1 process", "stage 0, 2 processes", "stage 3, 2 processes"])
        self.assertEqual(rows(found)["stage 3, 2 processes"]["weights"], "equal")
        self.assertIn("stage 3, 2 processes", str(found))
        with open(page, encoding="utf-8") as file:
            self.assertIn('<li class="kept">ZeRO 3</li>', file.read())

    def test_a_module_trains_as_by_torchs_loop(self):
        found = verify(models.plain, peer="plain", only="own loop")
        self.assertTrue(found.kept, str(found))
        self.assertEqual([one["verdict"] for one in found.variants], ["kept", "kept"], str(found))

    def test_parameter_groups_train_as_by_torchs_loop(self):
        rule = {"match": ["bias$"], "params": {"weight_decay": 0, "lr": 0.02, "betas": [0.8, 0.9]}}
        found = verify(models.plain, config={**CONFIG, "capstan": {"parameter_groups": [rule]}}, peer="plain", only="own loop")
        self.assertTrue(found.kept, str(found))
        self.assertEqual(rows(found)["PyTorch's own loop"]["verdict"], "kept", str(found))

    def test_an_engine_before_it_changes_nothing(self):
        self.assertTrue(verify(models.dropout, only="after another engine").kept)

    def test_peers_get_batches_as_they_were_before_forward(self):
        found = verify(models.in_place, peer="plain", only="own loop")
        self.assertTrue(found.kept, str(found))

    def test_dropout_goes_on_with_the_random_numbers_of_the_run(self):
        self.assertTrue(verify(models.dropout, only="saved and resumed").kept)


class Faults(Fixture):
    def fails(self, build_model, only, text, data=models.samples):
        found = verify(build_model, data, only=only)
        self.assertFalse(found.kept, str(found))
        broken = [one for one in found.variants if one["verdict"] == "broken"]
        self.assertIn(text, broken[0]["remark"])

    def test_batch_normalisation_is_named(self):
        self.fails(models.batch_norm, "micro", "The batch normalisation 'between' takes its mean and variance from one")

    def test_a_sum_in_place_of_a_mean_is_named(self):
        self.fails(models.sum_of_rows, "micro", "the model returns a sum where a mean is due.")

    def test_unequal_counts_of_tokens_are_named_with_both_means(self):
        self.fails(models.labelled, "micro", "Micro-batches have unequal counts of tokens, and each counts alike", models.tokens)

    def test_random_numbers_of_python_are_named(self):
        self.fails(models.in_python, "saved and resumed", "forward draws random numbers from Python")

    def test_state_that_no_checkpoint_holds_is_named(self):
        self.fails(models.counting, "saved and resumed", "Something that training depends on is not in the checkpoint")

    def test_inputs_that_forward_changes_are_named_though_nothing_differs(self):
        found = verify(models.in_place, only="the same once more")
        self.assertTrue(found.kept, str(found))
        self.assertIn("forward changes its input 'x' in place", found.variants[0]["remark"])

    def test_another_update_than_torchs_is_found(self):
        # Adam without bias correction, which torch has not.
        other = {**CONFIG, "optimizer": {"type": "Adam", "params": {"lr": 1e-2, "bias_correction": False}}}
        found = verify(models.plain, config=other, peer="plain", only="PyTorch")
        self.assertEqual(rows(found)["PyTorch's own loop"]["verdict"], "broken", str(found))


class Mistakes(Fixture):
    def test_calls_that_cannot_be_made(self):
        self.raises(capstan.ConfigError, "build_model must be a function", verify, models.plain())
        self.raises(capstan.ConfigError, "steps must be a whole number of at least 2, got 1", verify, models.plain, steps=1)
        self.raises(capstan.ConfigError, "world must be a whole number of at least 2", verify, models.plain, world=True)
        self.raises(capstan.ConfigError, "peer must be of 'plain', 'deepspeed', got 'jax'", verify, models.plain, peer="jax")
        self.raises(capstan.RuntimeFault, "Define functions at the top of a module", verify, lambda: models.plain())

    def test_a_configuration_with_mistakes(self):
        wrong = {**CONFIG, "optimizer": {"type": "AdamW", "params": {"lr": -1}}}
        self.raises(capstan.ConfigError, "optimizer.params.lr", verify, models.plain, config=wrong)
        self.raises(capstan.ConfigError, "optimizer", verify, models.plain, config={"train_batch_size": 8})

    def test_a_module_that_fails(self):
        self.raises(capstan.RuntimeFault, "TypeError: ", verify, models.plain, models.sentences)

    def test_what_a_peer_cannot_train_is_refused_and_breaks_nothing(self):
        found = verify(models.labelled, models.tokens, config={**CONFIG, "bf16": {"enabled": True}}, peer="plain", only="PyTorch")
        self.assertTrue(found.kept, str(found))
        self.assertIn("this loop computes in float32", rows(found)["PyTorch's own loop"]["remark"])

    def test_torch_distributed_after_an_engine_is_an_error(self):
        script = ("import capstan, verify_models as m\n"
                  f"capstan.initialize(model=m.plain(), config={config()!r})\n"
                  "try:\n    capstan.init_distributed()\n"
                  "except capstan.RuntimeFault as fault:\n    print(fault)\n")
        result = subprocess.run([os.environ["CAPSTAN_TEST_PROGRAM"], "launch", "-n", "2", sys.executable, "-W", "ignore", "-c",
                                 script], capture_output=True, text=True, timeout=120, cwd=HERE)
        self.assertEqual(result.stdout.count("Call it before capstan.initialize()."), 2, result.stdout + result.stderr)


if __name__ == "__main__":
    unittest.main()
