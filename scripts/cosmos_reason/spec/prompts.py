"""Texts that words of a spec stand for: what is added to a question, and how reasoning is
trained."""

# As Cosmos-Reason2 is asked.
THINK = (
    "\n\nAnswer the question using the following format:\n\n"
    "<think>\nYour reasoning.\n</think>\n\n"
    "Write your final answer immediately after the </think> tag."
)
# The same as Cosmos-Reason1 was asked, of a question without and with options.
THINK_IN_TAGS = (
    "\nPlease answer the question in the following format: "
    "<think> your reasoning </think> <answer> your answer </answer>."
)
THINK_OF_LETTER = THINK_IN_TAGS.replace("your answer", "your single letter answer")
# Reasoning and answer, as they are trained.
THOUGHT = "<think>\n{}\n</think>\n\n{}"
CHOOSE = "Answer with the option's letter from the given choices directly."
# What is added to a question, by `evaluation.answer_type`; reasoning as the default model reads it.
ADDED = {"freeform": "", "naive": "", "reasoning": THINK, "letter": f"\n{CHOOSE}"}
