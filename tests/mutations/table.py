"""Source changes that break a promise of the weight plane, and the tests that must turn red.

A text must stand in its file exactly once. When the code there changes on purpose,
so does its row; a row whose promise is gone is deleted.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutation:
    promise: str
    """That is broken."""
    file: str
    text: str
    replacement: str
    tests: tuple[str, ...]
    """Names of tests, each of which stands in one file; each must fail."""


LEDGER = "services/weight_sync/ledger.py"
MEMBER = "services/weight_sync/members/member.py"
PROCESS_GROUPS = "weights/transports/collective/process_groups.py"
PUBLISHING = "services/weight_sync/publishing.py"
RECEIVER = "weights/receiving/receiver.py"

MUTATIONS = (
    Mutation(
        "the trainer looks at the proofs of a batch",
        "services/trainer/server.py",
        "        self._rank.check_batch(batch, map(wire.decode_proof, held.proofs), self._history.roots)\n",
        "",
        ("test_a_batch_with_unproven_tokens_reaches_no_rank",),
    ),
    Mutation(
        "a service refuses an epoch older than the newest that it has heard of",
        "trimaran/wire/fence.py",
        "        if caller.epoch < newest:\n",
        "        if caller.epoch < 0:\n",
        ("test_an_older_epoch_is_refused_and_other_runs_are_not_touched",),
    ),
    Mutation(
        "a publication that waited for its turn looks at its epoch again",
        "services/weight_sync/coordinator.py",
        "            async with self._publishing:\n                self._check_epoch(caller)\n",
        "            async with self._publishing:\n",
        ("test_a_publication_that_waits_for_its_turn_ends_with_its_controllers_epoch",),
    ),
    Mutation(
        "a commit is recorded",
        LEDGER,
        '            f"{self._key}/live": {"version": str(live.version), "slot": slot},\n',
        "",
        (
            "test_a_version_is_staged_recorded_committed_and_proven_in_this_order",
            "test_a_restart_goes_on_from_the_store",
        ),
    ),
    Mutation(
        "a commit is recorded before any replica loads",
        PUBLISHING,
        """            await self._ledger.commit(attempt.caller, live, target.manifest, proofs)
        except (UnavailableError, StaleEpochError):
            self._pool.abort(tuple(outcome.staged), live.version, attempt)
            raise
        pauses = await self._pool.commit(live, outcome.copies, self._config.commit_timeout)
""",
        """            pauses = await self._pool.commit(live, outcome.copies, self._config.commit_timeout)
            await self._ledger.commit(attempt.caller, live, target.manifest, proofs)
        except (UnavailableError, StaleEpochError):
            self._pool.abort(tuple(outcome.staged), live.version, attempt)
            raise
""",
        ("test_a_version_is_staged_recorded_committed_and_proven_in_this_order",),
    ),
    Mutation(
        "a controller that was replaced while it staged records nothing",
        "trimaran/store/sqlite.py",
        "            if epoch < newest:\n",
        "            if epoch < 0:\n",
        ("test_a_controller_that_is_replaced_while_it_stages_publishes_nothing",),
    ),
    Mutation(
        "each block is verified as it lands",
        RECEIVER,
        "            verifier.check(number)\n",
        "",
        (
            "test_bytes_that_differ_from_the_manifest_are_not_staged",
            "test_a_flipped_bit_is_found_and_its_peer_not_asked_again",
        ),
    ),
    Mutation(
        "each block that a delta has changed is verified",
        "weights/delta/delta_stage.py",
        "            verifier.check(number)\n",
        "            pass\n",
        ("test_a_bad_delta_leaves_the_base_as_it_was",),
    ),
    Mutation(
        "a stage ends with the version's root",
        "services/weight_sync/staging/rounds.py",
        "(staged := task.result()).root != version.root:",
        '(staged := task.result()).root == "":',
        ("test_a_root_that_differs_is_never_committed",),
    ),
    Mutation(
        "whoever asks for a proof gets one of a full read-back",
        "services/weight_sync/proving/proving.py",
        "        await self._read_back(member, reading, everything, PORTION_BYTES)\n",
        "        reading.right = everything\n",
        ("test_verify_reads_everything_back_now",),
    ),
    Mutation(
        "a replica that joins is routable once each of its blocks was right",
        MEMBER,
        "        if not self.holds(live) or count(self.right) < num_blocks:\n",
        "        if not self.holds(live):\n",
        ("test_a_joiner_is_read_on_across_versions_until_it_is_through",),
    ),
    Mutation(
        "a publication lets a joiner's read-back get somewhere",
        PUBLISHING,
        "        await self._prover.let_join(self._pool.members.taking_part())\n",
        "",
        ("test_a_replica_joins_although_versions_follow_each_other_faster_than_it_is_read",),
    ),
    Mutation(
        "a replica whose catch-up is overtaken by each version takes part in a publication",
        "services/weight_sync/catch_up.py",
        "            self._pool.members.tell(member, Member.overtake)\n",
        "            pass\n",
        ("test_who_is_overtaken_by_a_version_takes_part_in_the_next_one",),
    ),
    Mutation(
        "after a fault a joiner is read back from the start",
        MEMBER,
        "state=State.FAILED, right=(), reason=reason",
        "state=State.FAILED, reason=reason",
        ("test_what_was_right_of_a_joiner_counts_until_it_has_a_fault_or_is_proven",),
    ),
    Mutation(
        "what is read back is compared with the manifest",
        "services/weight_sync/proving/windows.py",
        "        if digest != expected[number]:\n",
        "        if not digest:\n",
        (
            "test_a_fault_names_tensor_and_block",
            "test_a_wrong_bit_in_an_engine_is_found_and_fixed",
        ),
    ),
    Mutation(
        "the trainer refuses tokens of weights below the level that the run needs",
        "services/trainer/exchange/provenance.py",
        "    if not proof.level.reaches(needed):\n",
        "    if False:\n",
        ("test_a_proof_below_the_level_that_the_run_needs_is_refused",),
    ),
    Mutation(
        "a batch waits until its weights have been read back as far as the run needs",
        "services/controller/proofs.py",
        "        while self._may_rise(makers, proofs, before) and time.monotonic() < deadline:\n",
        "        while False:\n",
        ("test_a_batch_waits_until_its_weights_have_the_level_that_the_run_needs",),
    ),
    Mutation(
        "no version is replaced before it was read back as far as the run needs",
        PUBLISHING,
        "        await self._prover.finish_sample()\n",
        "        await self._prover.stop()\n",
        (
            "test_a_run_that_needs_all_read_back_replaces_no_version_before",
            "test_a_read_back_that_hangs_delays_each_commit_longer_until_it_is_given_up",
        ),
    ),
    Mutation(
        "a window that a commit cuts off goes on after it",
        "services/weight_sync/proving/windows.py",
        "        while num_blocks and not self.is_open(name):\n",
        "        for _ in range(1):\n",
        ("test_a_window_that_a_commit_cuts_off_goes_on_after_it",),
    ),
    Mutation(
        "a fault taints every version since its block was last right",
        LEDGER,
        "        found = [(proof, unite(known, right)), *tainted]\n",
        "        found = [(proof, unite(known, right))]\n",
        (
            "test_a_fault_taints_every_version_since_the_block_was_last_right",
            "test_the_versions_before_a_fault_that_a_sample_has_found_are_tainted",
        ),
    ),
    Mutation(
        "so does the version that becomes live while the fault is recorded",
        LEDGER,
        "        while newest != self._newest(proof):\n",
        "        while False:\n",
        ("test_a_version_that_becomes_live_while_a_fault_is_recorded_has_it_too",),
    ),
    Mutation(
        "what had trained when a fault was found is named in the ledger",
        "services/controller/loop.py",
        "            await self.name_tainted()\n",
        "",
        ("test_what_had_trained_when_a_fault_was_found_is_named_in_the_ledger",),
    ),
    Mutation(
        "a version is held until it is live, also where the next step trains meanwhile",
        "services/controller/loop.py",
        "                await self.trainer.train_ahead(batch, timeout, proofs)\n            await self._published()\n",
        "                await self.trainer.train_ahead(batch, timeout, proofs)\n",
        ("test_the_next_batch_trains_while_weights_are_published_and_waits_for_them",),
    ),
    Mutation(
        "a step that trains ahead leaves the version before it whole",
        "services/trainer/rank.py",
        "lambda: self._compute_weights(batch))\n",
        "lambda: self._compute_step(batch)[0])\n",
        ("test_the_version_before_is_held_and_sent_until_the_next_one_is_made",),
    ),
    Mutation(
        "the slots of a batch are freed when its own weights are live",
        "services/controller/buffer.py",
        "            self._num_training -= self._groups_per_step\n",
        "            self._num_training = 0\n",
        ("test_the_next_batch_trains_while_weights_are_published_and_waits_for_them",),
    ),
    Mutation(
        "after a load that failed nothing is live",
        "services/rollout/weights.py",
        "            self._live = self._manifest = None\n",
        "",
        ("test_a_load_that_fails_leaves_nothing_live",),
    ),
    Mutation(
        "what a replica's host says it has staged is the version",
        "services/rollout/spread.py",
        "        if (staged.root, staged.num_blocks) != (version.root, manifest.num_blocks):\n",
        "        if not path:\n",
        ("test_a_host_that_says_it_has_something_else_has_nothing",),
    ),
    Mutation(
        "where a host of a replica fails no other host keeps the version",
        "services/rollout/spread.py",
        "            self.discard(version.version, attempt)\n",
        "",
        ("test_where_one_host_fails_nothing_is_staged_on_any",),
    ),
    Mutation(
        "a replica that sleeps does not say that it has loaded what it had",
        "services/rollout/weights.py",
        "                is_loaded = self._live and _same(self._live, version) and not self.is_asleep\n",
        "                is_loaded = self._live and _same(self._live, version)\n",
        ("test_one_that_sleeps_is_woken_by_a_staged_version_alone",),
    ),
    Mutation(
        "nobody is brought up while replicas sleep",
        "services/weight_sync/catch_up.py",
        "        if live is None or self._rests:\n",
        "        if live is None:\n",
        ("test_who_joins_meanwhile_is_not_brought_up_before_the_publication",),
    ),
    Mutation(
        "tokens of weights that were mended since do not pass",
        "services/rollout/server.py",
        "        if self._weights.maker != maker:\n",
        "        if not maker:\n",
        ("test_what_wrong_weights_made_never_passes_for_what_fixed_ones_make",),
    ),
    Mutation(
        "a replica whose weights were wrong gets another maker's name",
        MEMBER,
        "maker_name(self.name, self.num_wrong)",
        "self.name",
        ("test_a_replica_that_is_wrong_twice_has_a_third_name_and_a_restart_remembers",),
    ),
    Mutation(
        "-0 travels as +0",
        "weights/sending/snapshot.py",
        "        torch.add(source, 0, out=target)",
        "        target.copy_(source)",
        ("test_minus_zero_counts_as_zero",),
    ),
    Mutation(
        "changes alone are loaded over their base only",
        "services/rollout/weights.py",
        "        return live.root == changes.base_root\n",
        "        return True\n",
        ("test_changes_alone_are_loaded_over_their_base_and_nothing_else",),
    ),
    Mutation(
        "an engine that had a wrong block is loaded whole",
        "services/rollout/weights.py",
        " or self.is_asleep or maker != self.maker:\n",
        " or self.is_asleep:\n",
        ("test_changes_alone_are_loaded_over_their_base_and_nothing_else",),
    ),
    Mutation(
        "after a load that failed everything is loaded",
        "services/rollout/vllm/engine.py",
        "self._live is not None and self._shown",
        "self._shown",
        ("test_after_changes_that_were_given_up_they_are_dropped_and_everything_is_loaded",),
    ),
    Mutation(
        "what our own table has written shows nothing of where vLLM's loader puts it",
        "services/rollout/vllm/loading/shown.py",
        "        elif self._by_vllm:\n",
        "        else:\n",
        ("test_vllm_loads_the_next_version_after_a_wrong_block",),
    ),
    Mutation(
        "no parameter is left without a value where vLLM's own loader is not asked",
        "services/rollout/vllm/loading/in_place.py",
        "if size > 0):\n",
        "if False):\n",
        ("test_a_version_that_lacks_something_is_not_written",),
    ),
    Mutation(
        "requests are taken while changes are prepared",
        "services/rollout/vllm/engine.py",
        "        async with writes as are_prepared, self._lock:\n",
        "        async with self._lock, writes as are_prepared:\n",
        ("test_requests_are_taken_while_changes_are_prepared",),
    ),
    Mutation(
        "changes of a load that is given up are dropped",
        "services/rollout/vllm/workers.py",
        "            if self._are_writes_held:\n",
        "            if False:\n",
        ("test_after_changes_that_were_given_up_they_are_dropped_and_everything_is_loaded",),
    ),
    Mutation(
        "a delta is taken against its own base only",
        "weights/delta/delta_stage.py",
        "        if held is None or delta.base_root != held_root:\n",
        "        if held is None:\n",
        ("test_a_delta_against_another_base_is_refused",),
    ),
    Mutation(
        "an abort undoes a delta",
        RECEIVER,
        "                undo(base.shadow, overlaid.undo)\n",
        "",
        ("test_a_discarded_delta_gives_the_base_back",),
    ),
    Mutation(
        "a relay gives nothing to a puller that does not know its key",
        "weights/transports/relay/relay_wire.py",
        '    return nonces if hmac.compare_digest(claim, _prove(key, b"puller", nonces)) else None\n',
        "    return nonces if claim else None\n",
        ("test_nothing_is_given_to_a_puller_with_a_wrong_key",),
    ),
    Mutation(
        "a puller takes nothing from a relay that does not know its own key",
        "weights/transports/relay/relay_wire.py",
        '    if not hmac.compare_digest(proof, _prove(key, b"server" + code, nonces)):\n',
        "    if not proof:\n",
        ("test_a_server_must_prove_itself_too",),
    ),
    Mutation(
        "a work of HCCL that failed is not taken for one that has ended",
        PROCESS_GROUPS,
        '    if backend == "hccl" and not work.is_success():\n',
        "    if False:\n",
        ("test_a_work_that_failed_condemns_its_group",),
    ),
    Mutation(
        "an error of an HCCL transfer group does not end the process",
        PROCESS_GROUPS,
        '    with _variable("HCCL_ASYNC_ERROR_HANDLING", SPARE_PROCESS):\n',
        "    if True:\n",
        ("test_an_error_of_our_groups_does_not_end_the_process",),
    ),
    Mutation(
        "on an accelerator a receiver takes its senders one after the other",
        "weights/transports/collective/group_carrier.py",
        "        return not self._device.on_host\n",
        "        return False\n",
        ("test_a_receiver_is_in_one_group_at_a_time",),
    ),
    Mutation(
        "nobody enters a collective of an accelerator before all members are there",
        "weights/transports/collective/turns.py",
        "        while not has_come(key):\n",
        "        while False:\n",
        ("test_no_member_enters_a_collective_before_all_are_there",),
    ),
    Mutation(
        "a bucket is not used again before what came in it lies in the shadow",
        "weights/transports/collective/pump.py",
        "self._await_copies(at_most=1)",
        "self._await_copies(at_most=NUM_BUCKETS)",
        ("test_a_receiver_takes_more_while_it_copies",),
    ),
    Mutation(
        "registered memory is given up before it is unmapped",
        "weights/memory/host_memory.py",
        "        for end in self.ends:\n            end()\n",
        "        pass\n",
        ("test_what_is_registered_ends_before_the_memory_is_unmapped",),
    ),
    Mutation(
        "an accelerator's next group waits until torch has left the one before it",
        "weights/transports/collective/endpoint.py",
        "        self._turn.take(min(_left(deadline).total_seconds(), TURN_SECONDS))\n"
        "        self._has_turn = True  # after a failure `_release` gives it back\n",
        "",
        ("test_the_next_group_waits_until_torch_has_left_the_last_one",),
    ),
    Mutation(
        "a variable that makes HCCL's groups out of the trainer's ranks is refused",
        "trimaran/host/device.py",
        "        if variable in given and is_refused(given[variable])\n",
        "        if False\n",
        (
            "test_a_variable_that_would_harm_the_groups_of_an_npu_is_refused",
            "test_a_variable_that_would_harm_the_groups_of_an_npu",
        ),
    ),
    Mutation(
        "the number of a transfer group is never given twice",
        LEDGER,
        '        return await self._store.next_epoch(f"{self._key}/groups")\n',
        "        return self._slot + 1\n",
        ("test_the_number_of_a_transfer_group_is_never_given_twice_also_after_a_restart",),
    ),
    Mutation(
        "a load waits for the tokens made before its pause",
        "services/rollout/vllm/engine.py",
        "        queue.put_nowait(EngineCoreOutputs())\n",
        "        assert EngineCoreOutputs\n",
        ("test_every_token_made_before_the_pause_bears_the_old_versions_name",),
    ),
    Mutation(
        "an owner writes over no memory that a neighbour reads",
        "weights/memory/shadow.py",
        " and reuse.memory.size == size and reuse.claim():\n",
        " and reuse.memory.size == size and reuse.own:\n",
        ("test_while_a_neighbour_is_late_the_owner_writes_elsewhere",),
    ),
    Mutation(
        "a neighbour digests every block that it reads",
        RECEIVER,
        "shadow.layout).check_all(intake.check)\n",
        "shadow.layout)\n",
        ("test_a_neighbour_that_cannot_read_it_takes_a_copy_of_its_own",),
    ),
    Mutation(
        "a neighbour reads only what nobody writes to",
        "weights/memory/borrowed.py",
        "    if not lease(descriptor):\n",
        "    if lease(descriptor) is None:\n",
        ("test_one_writes_or_others_read",),
    ),
    Mutation(
        "of the replicas of a host one takes the version",
        "services/weight_sync/staging/sharing.py",
        "        waits = host in met and host not in lenders\n",
        "        waits = False\n",
        ("test_of_each_host_one_takes_the_version",),
    ),
)
