# Tests that take more than two seconds: label `slow` in place of `fast`. Filters of GoogleTest, by program; all others
# together take two minutes of processor time (`scripts/test.sh --fast`), which a new test here keeps so.
set(slow_of_kernels_tests Ops/Equivalence.* KernelCasesNotice.A* gemm.sums_over_pieces_are_exact
  vector_math.errors_in_ulp)
set(slow_of_spec_tests Rules.*)
set(slow_of_ops_tests ProductsByRows.HaveTheBits*)
set(slow_of_schedule_tests Automatic.*)
set(slow_of_comm_tests GoneHost.*)
set(slow_of_parallel_tests UpdateRules.*)
set(slow_of_data_tests TextStream.TokensDoNotDependOnHowATextIsStored)
set(slow_of_engine_tests Models/Parity.* Orders.* Pipeline.* ProductRules.* Recipes.* PartialAxes.*)
set(slow_of_launch_tests CopyStores.*)
set(slow_of_rehearsal_tests Rehearsal.IsLinearInTheLayers)
set(slow_of_planner_tests Finalist* Peers.TwoHundred* Plan.TheRecipe* Price.* PriceDraws.* Scaling.* Search.GivenLoadsOfExpertsCount)
set(slow_of_train_tests Copies.* LossScales.* Mixtures.* Pipelines.* RecipeRuns.* StagesTest.* TrainerTest.*
  Models/LaterTokens.* VerifySmall.RulesThatMagnifyRounding)
set(slow_of_diagnose_tests Health.ASlowRankIsNamed)
set(slow_of_cli_tests ForecastDraws.* Bench.StepIsTheDefinitionOfMfu ConfigCommand.ExplainsEveryKey)
set(slow_of_misuse_test Misuse.ADirectoryOfCheckpointsThat* Misuse.AReadOnlyMount* Misuse.OneInterrupt*
  Misuse.ASampleIsMadeWhenAsked)
set(slow_of_course_test Course.*)
set(slow_of_cuda_emulated_tests AttentionOnSmallerGpus.* CudaAttention.* CudaTf32.* Kernels/CudaAttention.*
  LongMatrices.* Ops/CudaEquivalence.*)
set(slow_of_cuda_cudnn_emulated_tests CudnnAttention.ComputesWhat*)
set(slow_of_cuda_memory_tests CudaTools.* CudaTraining.*)
set(slow_of_cuda_training_tests *)
set(slow_of_cuda_nccl_tests Nccl.Conforms Nccl.SumsOverHosts* NcclPipeline.NothingHangs* NcclTraining.*)

# Tests of the label nightly alone (tutti_nightly), where tests by day show the same of less or by other ways:
# Kernels/CudaAttention has each kernel of attention on the same cases;
set(night_of_cuda_emulated_tests Ops/CudaEquivalence.OfTableAndReference/attention_forward
  Ops/CudaEquivalence.OfTableAndReference/attention_backward)
# the faults of one model by day, of the others at night;
set(night_of_engine_tests Models/Parity.NoticesEveryFault*/llama Models/Parity.NoticesEveryFault*/gpt2_tied)
# the engine does this whatever the kernels, and cuda_memory_tests runs it with those of the CPU.
set(night_of_cuda_training_tests CudaTraining.ResumesBitForBit CudaTraining.ZeroOverRanksThatShareAGpu
  CudaTraining.OffloadToTheHostChangesNoBit CudaTraining.VerifyFindsRanksEqual CudaTraining.ARunOfTheCpuGoesOnHere)

# gtest_discover_tests(program ...) when the tests are run, with the names that parameters have, not their values.
function(tutti_gtest_discover_tests program)
  gtest_discover_tests(${program} DISCOVERY_MODE PRE_TEST NO_PRETTY_VALUES ${ARGN})
endfunction()

# The same with these labels.
function(tutti_discover_tests program)
  set(common ${ARGN} PROPERTIES TIMEOUT ${TUTTI_TEST_SECONDS} LABELS)
  list(JOIN slow_of_${program} ":" slow)
  list(JOIN night_of_${program} ":" night)
  tutti_gtest_discover_tests(${program} TEST_FILTER "-${slow}:${night}" ${common} fast)
  if(slow)
    tutti_gtest_discover_tests(${program} TEST_FILTER "${slow}-${night}" TEST_LIST ${program}_SLOW ${common} slow COST 50)
  endif()
endfunction()
