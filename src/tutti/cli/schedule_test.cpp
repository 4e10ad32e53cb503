// `tutti schedule` as its users see it: numbers, files, refusals.
#include "tutti/schedule/schedule.h"

#include <gtest/gtest.h>

#include <sstream>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/read_file.h"
#include "tutti/cli/testing/run.h"
#include "tutti/schedule/generators.h"
#include "tutti/schedule/lowering.h"

namespace tutti::cli {
namespace {

// `line`: what follows `tutti schedule --kind`.
Ran schedule(const std::string& line) {
    std::istringstream stream("schedule --kind " + line);
    std::vector<std::string> words;
    for (std::string word; stream >> word;) words.push_back(word);
    return tutti(words);
}

Json json(const std::string& line) {
    const Ran r = schedule(line + " --json");
    EXPECT_EQ(r.code, 0) << r.err;
    return Json::parse(r.out);
}

TEST(ScheduleCommand, NumbersAreExact) {
    const Json one = json("1f1b --stages 4 --microbatches 8");
    EXPECT_EQ(one["kind"], "1f1b");
    EXPECT_EQ(one["makespan"], 33);
    EXPECT_EQ(one["bubble"], 9);
    EXPECT_EQ(one["bubble_rate"], 9.0 / 33);
    EXPECT_EQ(one["peak_chunks_until_w"], Json({4, 3, 2, 1}));
    EXPECT_EQ(one["messages_per_microbatch"], 6);
    EXPECT_EQ(one["actions"][3][1], "3B0");
    // Sums of a tenth are not rounded: 11 * 0.3 and not 3.3000000000000003.
    EXPECT_EQ(json("gpipe --stages 4 --microbatches 8 --f 0.1 --i 0.1 --w 0.1")["makespan"], 3.3);
    EXPECT_EQ(json("gpipe --stages 4 --microbatches 8 --f 1/3 --i 1/3 --w 1/3")["makespan"], 11);
    EXPECT_EQ(json("gpipe --stages 2 --microbatches 1 --f 1e-3 --i 2e-3 --w 0 --comm 0.0005")["makespan"], 0.007);
    EXPECT_TRUE(schedule("gpipe --stages 4 --microbatches 4").out.find("9 (42.9 %; busy 57.1 %)") != std::string::npos);
    EXPECT_EQ(json("zb-h2 --stages 4 --microbatches 8")["cost"], 24);
    EXPECT_EQ(json("zb-h1 --stages 4 --microbatches 8")["peak_chunks_until_i"], Json({4, 3, 2, 1}));
    EXPECT_EQ(json("interleaved --stages 4 --virtual 2 --microbatches 8")["makespan"], 57);
    EXPECT_EQ(json("interleaved --stages 4 --virtual 2 --microbatches 10 --group-size 5")["actions"][0][5], "4F0");
    EXPECT_EQ(json("interleaved --stages 4 --microbatches 8")["actions"], one["actions"]);
    EXPECT_EQ(json("dualpipe --stages 4 --microbatches 8 --fb 2")["makespan"].get<double>() <
                  json("dualpipe --stages 4 --microbatches 8")["makespan"].get<double>(),
              true);
}

// A message takes latency + bytes / bandwidth; the next one on the same link follows bytes / bandwidth later.
TEST(ScheduleCommand, MessagesHaveALatencyAndABandwidth) {
    const std::string gpipe = "gpipe --stages 2 --microbatches 3 --i 0 --w 1 ";
    const Json one = json(gpipe + "--latency 0.5 --message-bytes 6e3 --bandwidth 2000");
    EXPECT_EQ(one["times"], Json::parse(R"({"f":1,"i":0,"w":1,"fb":null,"latency":0.5,"transfer":3})"));
    // Activations leave at 1, 2, 3, arrive at 4.5, 7.5, 10.5 because each occupies the link for 3; rank 1 is done with
    // its forwards at 11.5 and with B0, B1, B2 at 12.5, 13.5, 14.5; gradients arrive at 16, 19, 22; the last B ends
    // at 23.
    EXPECT_EQ(one["makespan"], 23);
    EXPECT_EQ(json(gpipe + "--comm 0.5 --message-bytes 0 --bandwidth 1")["makespan"],
              json(gpipe + "--latency 0.5")["makespan"]);
    EXPECT_EQ(json("1f1b --stages 4 --microbatches 8 --comm 1/3")["times"]["latency"], 1.0 / 3);
    EXPECT_EQ(json("dualpipe --stages 4 --microbatches 8 --fb 2")["times"]["fb"], 2);
}

TEST(ScheduleCommand, AllKindsInOneTable) {
    const Json all = json("all --stages 4 --microbatches 8");
    EXPECT_EQ(all["schedules"].size(), schedule::kinds().size());
    EXPECT_EQ(all["refused"].size(), 0u);
    const Json odd = json("all --stages 3 --microbatches 8 --memory-limit 5");
    for (const Json& refused : odd["refused"]) EXPECT_FALSE(refused["reason"].get<std::string>().empty());
    for (const Json& s : odd["schedules"])
        for (const int peak : s["peak_chunks_until_w"].get<std::vector<int>>()) EXPECT_LE(peak, 5) << s["kind"];
    EXPECT_EQ(odd["schedules"].size() + odd["refused"].size(), schedule::kinds().size());
    const Ran text = schedule("all --stages 4 --microbatches 8");
    EXPECT_NE(text.out.find("1f1b"), std::string::npos) << text.out;
}

TEST(ScheduleCommand, FilesComeBack) {
    const ScratchFolder folder;
    const std::string csv = folder.path("s.csv"), lowered = folder.path("l.csv"), svg = folder.path("s.svg");
    EXPECT_EQ(schedule("dualpipe-v --stages 2 --microbatches 5 --csv " + csv + " --svg " + svg).code, 0);
    EXPECT_EQ(schedule("dualpipe-v --stages 2 --microbatches 5 --messages --csv " + lowered).code, 0);
    const schedule::Schedule made = schedule::generate("dualpipe-v", {2, 1, 5});
    EXPECT_EQ(read_file(csv), to_csv(made));
    EXPECT_EQ(read_file(lowered), to_csv(insert_messages(made)));
    const Json original = json("dualpipe-v --stages 2 --microbatches 5 --comm 0.25");
    for (const std::string& file : {csv, lowered}) {
        const Json again = json(file + " --stages 2 --microbatches 5 --comm 0.25");
        for (const char* key : {"makespan", "cost", "bubble", "peak_chunks_until_w", "messages", "actions"})
            EXPECT_EQ(again[key], original[key]) << key;
    }
    const std::string drawing = read_file(svg);
    EXPECT_TRUE(drawing.starts_with("<svg ") && drawing.ends_with("</svg>\n"));
    size_t titles = 0, boxes = 1;  // of the file; of each pass, both of its parts and their frame
    for (size_t at = drawing.find("<title>"); at != std::string::npos; at = drawing.find("<title>", at + 1)) ++titles;
    for (const schedule::Program& program : made.programs)
        for (const schedule::Action& action : program) boxes += action.op == schedule::Op::overlap ? 3 : 1;
    EXPECT_EQ(titles, boxes);
    EXPECT_NE(drawing.find("<title>0F0: 0 to 1</title></rect><text class=\"m cell on\""), std::string::npos);
    size_t numbers = 0, parts = 0;  // the parts of an overlap are numbered, too
    for (const char* style : {"class=\"m cell", "class=\"m half"})
        for (size_t at = drawing.find(style); at != std::string::npos; at = drawing.find(style, at + 1)) ++numbers;
    for (const schedule::Program& program : made.programs)
        for (const schedule::Action& action : program) parts += action.op == schedule::Op::overlap ? 2 : 1;
    EXPECT_EQ(numbers, parts);
}

TEST(ScheduleCommand, DrawsTheTimeline) {
    const Ran r = schedule("zb-h1 --stages 3 --microbatches 3");
    EXPECT_NE(r.out.find("rank 0  FFF..IWIWIW\nrank 1  .FF.IFIWIWW\nrank 2  ..FIFIFIWWW\n"), std::string::npos)
        << r.out;
}

TEST(ScheduleCommand, PipeDreamNumbersTheVersionsOfItsWeights) {
    const Json d = json("pipedream --stages 4 --microbatches 8");
    EXPECT_EQ(d["kind"], "pipedream");
    EXPECT_EQ(d["actions"], json("1f1b --stages 4 --microbatches 8")["actions"]);
    EXPECT_EQ(d["versions_held"], Json({4, 3, 2, 1}));
    EXPECT_EQ(d["weight_versions"][3], Json({0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7}));
    EXPECT_EQ(d["weight_versions"][0].back(), 4);
    const Ran shown = schedule("pipedream --stages 2 --microbatches 4");
    EXPECT_NE(shown.out.find("rank 0  F0:v0 F1:v0 B0:v0 F2:v1 B1:v0 F3:v2 B2:v1 B3:v2\n"), std::string::npos)
        << shown.out;
    const ScratchFolder folder;
    const std::string svg = folder.path("p.svg");
    EXPECT_EQ(schedule("pipedream --stages 4 --microbatches 8 --svg " + svg).code, 0);
    EXPECT_NE(read_file(svg).find("weights after 4 updates"), std::string::npos);
    EXPECT_NE(schedule("pipedream --stages 2 --virtual 2 --microbatches 4").err.find("one stage on each rank"),
              std::string::npos);
}

TEST(ScheduleCommand, AutoStaysWithinItsMemory) {
    const Json found = json("auto --stages 4 --microbatches 8 --memory-limit 4 --comm 0.1");
    EXPECT_LE(found["makespan"].get<double>(),
              json("zb-h1 --stages 4 --microbatches 8 --comm 0.1")["makespan"].get<double>());
    for (const int peak : found["peak_chunks_until_w"].get<std::vector<int>>()) EXPECT_LE(peak, 4);
    EXPECT_EQ(found["kind"], "auto");
}

TEST(ScheduleCommand, RefusesWithWhatToTry) {
    const ScratchFolder folder;
    const std::string illegal = folder.write("illegal.csv", "0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n");
    const std::string legal = folder.write("legal.csv", "0F0,0B0\n1F0,1B0\n");
    const std::vector<std::pair<std::string, std::string>> cases = {
        {"dualpip --stages 4 --microbatches 8", "the nearest is dualpipe of naive, gpipe, 1f1b"},
        {"1f1b --stages 4", "--stages and --microbatches are required"},
        {"1f1b --stages 0 --microbatches 8", "--stages"},
        {"1f1b --stages 4 --microbatches 8 --virtual 2", "has 1 stage per rank, got 2 virtual stages"},
        {"1f1b --stages 4 --microbatches 8 --memory-limit 3", "holds up to 4 live chunks on a rank"},
        {"1f1b --stages 4 --microbatches 8 --f -1", "--f must be a time of 0 or more"},
        {"1f1b --stages 4 --microbatches 8 --comm nan", "--comm must be a time of 0 or more"},
        {"1f1b --stages 4 --microbatches 8 --bandwidth 5", "--message-bytes is missing"},
        {"1f1b --stages 4 --microbatches 8 --message-bytes 5", "--bandwidth is missing"},
        {"1f1b --stages 4 --microbatches 8 --message-bytes 5 --bandwidth 0",
         "--message-bytes / --bandwidth must be a time of 0 or more"},
        {"1f1b --stages 4 --microbatches 8 --message-bytes 1/3 --bandwidth 2",
         "--message-bytes = 1/3: required a number"},
        {"1f1b --stages 4 --microbatches 8 --w 1/0", "--w must be a time of 0 or more"},
        {"1f1b --stages 4 --microbatches 8 --f 0.12345678901234 --w 1/7", "fewer digits"},
        {"dualpipe --stages 3 --microbatches 8", "dualpipe needs an even number of ranks, got 3"},
        {"interleaved --stages 4 --virtual 2 --microbatches 8 --group-size 9", "group size must be between 1 and"},
        {"auto --stages 4 --virtual 2 --microbatches 8 --memory-limit 1", "a microbatch needs 2 live chunks"},
        {"auto --stages 4 --microbatches 8 --w-memory 2", "required a number from 0 to 1"},
        {"1f1b --stages 4 --microbatches 8 --w-memory 0.5", "--w-memory is for --kind auto, which weighs"},
        {"all --stages 4 --microbatches 8 --w-memory 0.5", "--w-memory is for --kind auto, which weighs"},
        {"all --stages 4 --microbatches 8 --csv x.csv", "are for one schedule"},
        {"gpipe --stages 4096 --microbatches 65536", "more actions than this command lists"},
        {"/no/such/file.csv", "cannot read the schedule /no/such/file.csv"},
        {illegal, "deadlock: rank 0, action 1 (0B0) waits for 1I0"},
        {legal + " --stages 3", "has 2; leave --stages out"},
    };
    for (const auto& [line, message] : cases) {
        const Ran r = schedule(line);
        EXPECT_EQ(r.code, 2) << line;
        EXPECT_EQ(r.out, "") << line;
        EXPECT_NE(r.err.find(message), std::string::npos) << line << '\n' << r.err;
    }
    EXPECT_EQ(schedule("1f1b --stages 2 --microbatches 2 --csv /no/such/directory/s.csv").code, 2);
}

}  // namespace
}  // namespace tutti::cli
