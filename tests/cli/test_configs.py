from lightning_gep.cli.configs import LONGEST_NAME, job_name, sweep_name


def test_a_job_is_named_by_its_settings_in_any_order():
    assert (
        job_name(["seed=0", "mechanism.k=100"]) == "mechanism.k=100,seed=0" == job_name(["mechanism.k=100", "seed=0"])
    )
    assert job_name([]) == "default"


def test_settings_that_no_directory_can_be_called_by_still_have_names_of_their_own():
    names = {job_name([f"data.path=a{character}b"]) for character in "/ '\"*:\\"}
    assert len(names) == 7
    assert not any(set(name) & set("/ '\"*:\\") for name in names)


def test_long_settings_are_cut_and_stay_different():
    names = {job_name(["x=" + "a" * 500 + end]) for end in "12"}
    assert len(names) == 2
    assert all(len(name) < LONGEST_NAME + 20 for name in names)


def test_the_same_command_is_the_same_sweep_and_another_one_is_not():
    command = ["privacy.epsilon=2,5,8", "mechanism.k=50,100", "trainer.max_epochs=3"]
    assert sweep_name(None, command) == sweep_name(None, command[::-1])
    assert sweep_name(None, command).startswith("epsilon-k-")
    assert sweep_name(None, command) != sweep_name(None, [*command[:2], "trainer.max_epochs=4"])
    assert sweep_name("mine", command) == "mine"
    assert sweep_name(None, []).startswith("sweep-")
