"""The built-in few-shot examples: three of each task kind, written for this package."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class FewShotExample:
    """
    A question answered in the form that the teacher is to use.

    Args:
        question (`str`): the question.
        explanation (`str`): the reasoning.
        answer (`str`): the answer.
        choices (`Mapping[str, str]`, *optional*): letter to option text.
    """

    question: str
    explanation: str
    answer: str
    choices: Mapping[str, str] | None = None


EXAMPLES = {
    "number": (
        FewShotExample(
            "A baker fills 6 trays with 8 rolls each and sells 15 rolls before noon. How many rolls are left?",
            "6 trays of 8 rolls are 6 * 8 = 48 rolls. 15 of them are sold, so 48 - 15 = 33 rolls are left.",
            "33",
        ),
        FewShotExample(
            "Ines reads 24 pages a day. Her book has 312 pages. In how many days does she finish it?",
            "Each day takes 24 of the 312 pages, so she needs 312 / 24 = 13 days.",
            "13",
        ),
        FewShotExample(
            "A rope of 7.5 metres is cut into 3 equal pieces, and one piece is shortened by half a metre. How long is that "
            "piece in metres?",
            "Each piece is 7.5 / 3 = 2.5 metres long. Shortened by 0.5 metres, one has 2.5 - 0.5 = 2 metres.",
            "2",
        ),
    ),
    "choice": (
        FewShotExample(
            "What would you use to keep rain off while you walk to the bus?",
            "Something carried by hand has to shield a person who walks. A roof and a towel do not do that on the way; an "
            "umbrella does.",
            "B",
            {"A": "roof", "B": "umbrella", "C": "towel", "D": "fountain"},
        ),
        FewShotExample(
            "Where does a letter go right after it is dropped into a mailbox and collected?",
            "Collected letters are first brought to where the mail is sorted, which is a post office. Only later do they "
            "reach a doorstep.",
            "C",
            {"A": "doorstep", "B": "library", "C": "post office", "D": "harbour"},
        ),
        FewShotExample(
            "Why do people wear gloves when they build a snowman?",
            "Snow is cold, and bare hands in it begin to hurt. Gloves keep the hands warm.",
            "A",
            {"A": "to keep their hands warm", "B": "to be seen", "C": "to melt the snow", "D": "to run faster"},
        ),
    ),
    "nli": (
        FewShotExample(
            "Premise: Two girls in yellow coats wait at a tram stop in the rain.\nHypothesis: Some people are outdoors.",
            "A tram stop in the rain is outdoors, and the girls are people. So the hypothesis must be true.",
            "entailment",
        ),
        FewShotExample(
            "Premise: A man is asleep on a bench with a newspaper over his face.\nHypothesis: The man is jogging.",
            "Whoever is asleep on a bench is not jogging at that time. So the hypothesis cannot be true.",
            "contradiction",
        ),
        FewShotExample(
            "Premise: A woman carries a cello case up the stairs.\nHypothesis: The woman is late for a concert.",
            "She may be on her way to a concert, and she may be late, but the premise says neither. So it may be either.",
            "neutral",
        ),
    ),
    "text": (
        FewShotExample(
            "On which continent is the river that flows through Cairo?",
            "The river that flows through Cairo is the Nile. Cairo and the whole Nile are in Africa.",
            "Africa",
        ),
        FewShotExample(
            "Take the last letters of the words Green Apple and join them.",
            "The last letter of Green is n. The last letter of Apple is e. Joined they are ne.",
            "ne",
        ),
        FewShotExample(
            "A shop is closed on the day after Saturday. On which day is it closed?",
            "The day after Saturday is Sunday, so the shop is closed on Sunday.",
            "Sunday",
        ),
    ),
}
