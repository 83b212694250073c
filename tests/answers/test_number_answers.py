"""Which number does a text commit to?"""

import random
from fractions import Fraction

import pytest

from qcrd_trl.answers import extract_answer, format_answer


def check(text, expected):
    assert extract_answer(text, "number") == (None if expected is None else Fraction(expected))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("80,000 + 50,000 = 130,000 spent, sold for 200,000, so the profit is $70,000.", 70000),
        ("Together they sold 72 clips, all in all, in spring.", 72),
        ("The order costs **$29.00**.", 29),
        ("48/2 = <<48/2=24>>24 in May. 48+24 = <<48+24=72>>72 in all.\n#### 72", 72),
        ("In the example the result was #### 5. For our problem 3 x 7 = 21.\n#### 21", 21),
        ("15 - 4 = 11. The answer is 11. Wait, no, two more were given away. The answer is 9.", 9),
        ("Therefore, the final answer is $\\boxed{42}$.", 42),
        ("\\[ \\boxed{\\dfrac{3}{4}} \\]", "3/4"),
        ("The share is $\\boxed{28\\text{ percent}}$.", 28),
        ("25% off $40 means he pays 75%, i.e. $30.", 30),
        ("12 of 48 is 0.25, so the answer is 25%.", 25),
        ("At dawn it is −7 °C.", -7),
        ("The answer is 18.0", 18),
        ("Answer: 3.50 dollars", "7/2"),
        ("Answer: 64.", 64),
        ("The answer is 2/3.", "2/3"),
        ("So there are forty-two marbles left.", 42),
        ("The answer is 12 batteries (3 packs of 4).", 12),
        ("Answer: none", None),
        ("The total is 72 clips, altogether.", 72),
    ],
)
def test_known_cases(text, expected):
    """Each of these was read wrongly by a comparable tool: a wrong vote turns a good rationale into a negative."""
    check(text, expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("32", 32),
        ("32.", 32),
        (" 32\n", 32),
        ("-4", -4),
        ("+7", 7),
        (".5", "1/2"),
        ("5.", 5),
        ("$5", 5),
        ("$1,234.50", "2469/2"),
        ("1,234,567", 1234567),
        ("1,00,000", 100000),
        ("1 234 567", 1234567),
        ("12\u202f500", 12500),
        ("1'000'000", 1000000),
        ("€ 20", 20),
        ("20 €", 20),
        ("£3.20", "16/5"),
        ("¥500", 500),
        ("Rs. 500", 500),
        ("Rs 1,500", 1500),
        ("USD 12", 12),
        ("12 dollars", 12),
        ("-$5", -5),
        ("$-5", -5),
        ("−7", -7),
        ("–7", -7),
        ("minus three", -3),
        ("negative 12", -12),
        ("25%", 25),
        ("25 percent", 25),
        ("25 per cent", 25),
        ("30kg", 30),
        ("5km", 5),
        ("7°C", 7),
        ("3/4", "3/4"),
        ("-3/4", "-3/4"),
        ("3 / 4", "3/4"),
        ("1 1/2", "3/2"),
        ("1½", "3/2"),
        ("½", "1/2"),
        ("¾ cup", "3/4"),
        ("2 and a half", "5/2"),
        ("2 and 1/2 hours", "5/2"),
        ("1.5e3", 1500),
        ("2E-3", "1/500"),
        ("1.5 x 10^3", 1500),
        ("1.5 × 10³", 1500),
        ("2 × 10⁻³", "1/500"),
        ("$2 \\times 10^{3}$", 2000),
        ("10^6", 1000000),
        ("3.2 million", 3200000),
        ("$3.2M", 3200000),
        ("5k", 5000),
        ("5 thousand", 5000),
        ("two thousand", 2000),
        ("one hundred and five", 105),
        ("two thousand, three hundred and five", 2305),
        ("twenty one", 21),
        ("a dozen", 12),
        ("a hundred", 100),
        ("two and a half", "5/2"),
        ("half", "1/2"),
        ("two thirds", "2/3"),
        ("three-quarters", "3/4"),
        ("zero", 0),
        ("three point one four", "157/50"),
        ("3 dollars and 50 cents", "7/2"),
        ("50 cents", 50),
        ("x = 5", 5),
        ("12 = x", 12),
        ("x=-5", -5),
        ("x = - 5", -5),
        ("5 cm²", 5),
        ("１２", 12),
        ("１，２３４", 1234),
        ("٤٢", 42),
        ("🎉 42 🎉", 42),
        ("\ud800 42", 42),
        ("**42**", 42),
        ("*42*", 42),
        ("`42`", 42),
        ("_42_", 42),
        ("```\n42\n```", 42),
        ("# 42", 42),
        ("> 42", 42),
        ("- 42", 42),
        ("<b>42</b>", 42),
        ("~~41~~ 42", 42),
        ("007", 7),
        ("100 000.5", "200001/2"),
    ],
)
def test_one_number_in_many_spellings(text, expected):
    """Without these, samples that agree would be counted as different votes, or as none."""
    check(text, expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$\\boxed{\\$1{,}234.50}$", "2469/2"),
        ("\\boxed{-\\frac{1}{2}}", "-1/2"),
        ("\\boxed{\\frac{-1}{2}}", "-1/2"),
        ("\\boxed{\\tfrac12}", "1/2"),
        ("\\boxed{1\\frac{1}{2}}", "3/2"),
        ("\\boxed{1\\,234}", 1234),
        ("\\boxed{10\\!,\\!000}", 10000),
        ("\\boxed{28\\%}", 28),
        ("\\boxed{\\text{28 apples}}", 28),
        ("\\boxed{\\mathbf{5}}", 5),
        ("\\fbox{5}", 5),
        ("\\boxed 5", 5),
        ("\\boxed5.", 5),
        ("\\boxed{x = 5}", 5),
        ("\\boxed{8 + 9 = 17}", 17),
        ("\\boxed{7^\\circ}", 7),
        ("First $\\boxed{3}$, then $3 + 4 = \\boxed{7}$.", 7),
        ("\\(x = 5\\)", 5),
        ("$$\nx = 5\n$$", 5),
        ("**Final Answer:** $\\boxed{5}$ apples", 5),
        ("The final answer is $\\boxed{5}$. I hope it is correct.", 5),
        ("So \\boxed{17}. This is 3 more than 14.", 17),
        ("\\boxed{\\text{none}}", None),
        ("3 + 4 = 7, \\boxed{12:00}", None),
        ("\\boxed{}", None),
        ("It is \\boxed{5", 5),
        ("\\begin{align} x &= 3 + 4 \\\\ &= 7 \\end{align}", 7),
        ("The answer is $\\frac{8}{3}$.", "8/3"),
        ("The answer is \\(\\dfrac{1}{3}\\).", "1/3"),
        ("\\boxed{5\\pi}", None),
        ("\\boxed{3\\sqrt{2}}", None),
        ("\\boxed{\\boxed{5}}", 5),
    ],
)
def test_latex(text, expected):
    """A box is the clearest commitment there is; a brace or spacing command read wrongly changes its value."""
    check(text, expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The answer is 5.", 5),
        ("the answer is: 5", 5),
        ("The answer is:\n\n5", 5),
        ("The answer is $5, as 8 - 3 = 5 and 3 is spent.", 5),
        ("Final answer: 42", 42),
        ("**Final Answer**\n\n42", 42),
        ("### Final Answer\n42 apples", 42),
        ("**Answer:** 42", 42),
        ("<Answer>: 42", 42),
        ("<Explanation>: 6 times 7 gives it. <Answer>: 42", 42),
        ("<answer>42</answer>", 42),
        ("<think>6 * 7 is 42, 6 * 8 is 48</think>\n<answer>42</answer>", 42),
        ("[Answer] 42", 42),
        ("ANSWER = 3", 3),
        ("Ans. 5", 5),
        ("Ans: 5", 5),
        ("A: 5", 5),
        ("Answer 5", 5),
        ("Result: 12", 12),
        ("Correct answer - 12", 12),
        ("Answer -> 12", 12),
        ("Answer (in dollars): 12", 12),
        ("The answer, in dollars, is 12 per week.", 12),
        ("The answer to 3 + 4 is 7.", 7),
        ("The answer to the question of how much 2 pens cost is 6 dollars.", 6),
        ("The correct answer would be 12.", 12),
        ("So the answer must be approximately 12.5 miles.", "25/2"),
        ("The answer is a total of 12 apples for 3 people.", 12),
        ("The answer is 8 + 9 = 17.", 17),
        ("The answer is x = 4.", 4),
        ("The answer is that she has 4 cats.", 4),
        ("12 is the answer.", 12),
        ("3 + 9 = 12, which gives us 12 as the final answer.", 12),
        ("Therefore, the total number of pens in 3 boxes is 12.", 12),
        ("The answer is 5 because 9 - 4 = 5.", 5),
        ("The answer is 64. This is because 8 * 8 = 64 and not 65.", 64),
        ("Answer: 12\nExplanation: 3 packs of 4 batteries make 3 * 4 = 12; 13 would be one too many.", 12),
        ("Answer: 12.\nCheck: 12 / 4 = 3.", 12),
        ("Answer: She has 12 apples. This is because she picked 3 times 4.", 12),
        ("Answer: Tom had 3 apples and bought 4 more. So he has 3 + 4 = 7 apples.", 7),
        ("To find the answer, we subtract 4 from 9. So 5 pens are left.", 5),
        ("We answer the question by adding: 4 + 5 = 9.", 9),
        ("The answer is found by adding 3 and 4, which gives 7.", 7),
        ("The answer is clear. 3 + 4 = 7.", 7),
        ("Q: 2 + 2?\nA: 4\n\nQ: 3 + 3?\nA: 6", 4),
        ("The answer is 4.\n\nQ: Tim has 5 cats and 6 dogs. How many pets?\nA: The answer is 11.", 4),
        ("The answer is 1,234.", 1234),
        ("The answer is 3.14.", "157/50"),
        ("The answer is forty-two.", 42),
        ("The answer is 5 thousand dollars.", 5000),
        ("The answer is $3.2 million.", 3200000),
        ("The answer is the 3rd.", 3),
        ("The answer is 2/3 or 0.67.", "2/3"),
        ("The answer is -5.", -5),
        ("The answer is −5.", -5),
        ("The final answer is: $5$.", 5),
        ("The answer is 5km.", 5),
        ("**The answer is:** *12* apples", 12),
        ("The answer is\n12", 12),
        ("Thus, the answer is 12!", 12),
        ("The answer is ... 12.", 12),
        ('The answer is "12".', 12),
        ("#### 72 clips", 72),
        ("####72", 72),
        ("#### -5", -5),
        ("#### $1,200", 1200),
        ("#### Step 1: add\n3 + 4 = 7\n#### Step 2: double\n2 * 7 = 14 pens", 14),
        ("3 * 4 = 12\n#### Answer: 12", 12),
        (
            "If we had forgotten the tax, the answer would be 10. The answer is 12. If he paid no tax, the answer would be 10.",
            12,
        ),
        ("The answer is 12. A common wrong answer is 10.", 12),
        ("One might think the answer is 65. It is 8 * 8 = 64.", 64),
    ],
)
def test_announced_answers(text, expected):
    """What is announced counts, not the numbers of the explanation around it."""
    check(text, expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The answer is 11. Wait, no. The answer is 9.", 9),
        ("Answer: 7. Correction: 8", 8),
        ("Answer: 7\nCorrection: the answer is 8.", 8),
        ("The answer is 11. Actually, two were given away, so 9 are left.", 9),
        ("The answer is 11. Wait, let me recheck: 20 - 8 = 12.", 12),
        ("The answer is 11. Let me double check: 11 + 4 = 15. Yes, that is correct.", 11),
        ("The answer is 11. Wait, that is wrong.", None),
        ("The answer is 11, no wait, 12.", 12),
        ("The answer is 11. Hmm, I made a mistake. It should be 12.", 12),
        ("\\boxed{11}\n\nWait, I forgot the tax. So it is \\boxed{12}.", 12),
        ("\\boxed{11}. Oops, the answer is 12.", 12),
        ("The answer is not 5 but 6.", 6),
        ("The answer is not 5. The answer is 6.", 6),
        ("The answer is 6. The answer is not 5.", 6),
        ("The answer isn't 5, it's 6.", 6),
        ("The answer is 6, not 5.", 6),
        ("The answer is 6 rather than 5.", 6),
        ("So he has 6 pens, not 5.", 6),
        ("So he has 6 pens instead of 5.", 6),
    ],
)
def test_corrections_and_negations(text, expected):
    """The value a text takes back would otherwise be its vote."""
    check(text, expected)


@pytest.mark.parametrize(
    "text",
    [
        "Answer: none",
        "Answer: N/A",
        "Answer: unknown",
        "The answer cannot be determined from 3 and 4.",
        "I cannot determine the answer.",
        "There are 3 cats and 4 dogs. The answer is unknown.",
        "3 cats and 4 dogs. Answer: not enough information",
        "No answer",
        "Answer: No solution",
        "The answer is 12:00.",
        "The answer is 12:30 pm.",
        "The answer is 3-5.",
        "The answer is between 3 and 5.",
        "The answer is 2024-05-01.",
        "The answer is 5/6/2024.",
        "The answer is version 1.2.3.",
        "The answer is 5/0.",
        "The answer is 3 and 5.",
        "The answer is 1, 2 and 3.",
        "The answer is 1e999999999.",
        "The answer is 3,5.",
        "The answer is blue. There are 5 cars.",
        "",
        "   \n",
        "No digits here at all.",
        "?",
        None,
    ],
)
def test_no_vote(text):
    """A guess from the numbers nearby would put a text without an answer among the positives."""
    assert extract_answer(text, "number") is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("So she has 8 + 9 = 17 apples left after 3 days.", 17),
        ("15 - 4 = 11", 11),
        ("15 - 4 = 11.", 11),
        ("15-4=11", 11),
        ("The sum is 3 + 8 = <b>11</b>", 11),
        ("There are 8-7=1 more pens.", 1),
        ("5 boxes × 3 pens = 15 pens", 15),
        ("$7 - $5 = $2.", 2),
        ("3 x 4 = 12, 12 + 5 = 17 and that is all.", 17),
        ("7 times 2 equals 14.", 14),
        ("48 ÷ 6 ≈ 8 hours", 8),
        ("The rope is 22 inches longer (41 - 19 = 22).", 22),
        ("He earned 70,000 dollars in 2 years.", 70000),
        ("In 5 years Tom will be 30 years old.", 30),
        ("Each of the 5 friends gets 3 apples.", 3),
        ("The number of pupils in each of the 4 groups is 9.", 9),
        ("Therefore, 16 lamps broke, leaving 4.", 16),
        ("20 - 4 = 16\nTherefore, 16 lamps broke, leaving only 4 lamps.", 16),
        ("He gave away 3 of his 10 pens, leaving 7.", 7),
        ("If the 4 of them share 60 stamps, each one gets 15 stamps.", 15),
        ("So Mia had 23 stickers left after she used 14.", 23),
        ("He must have run 6 laps, taking 2 minutes for each lap.", 6),
        ("Her age is 12, since 5 + 7 = 12 and she is 7 years older than her 5-year-old brother.", 12),
        ("Therefore, he has 12 pens. Note that 3 of them are broken.", 12),
        ("There were 12 + 5 = 17 birds. To check: 17 - 5 = 12.", 17),
        ("1. Add 3 and 4 to get 7.\n2. Double it to get 14.", 14),
        ("Step 1: 3 + 4 = 7.\nStep 2: 7 * 2 = 14.", 14),
        ("Nina carried one lantern.", 1),
        ("So no apples are left.", 0),
        ("He had 5 apples and ate all of them. So there are no apples left.", 0),
        ("He finished in 3rd place with 12 points.", 12),
        ("On day 2 she read 12 pages.", 12),
        ("B12 costs 7 dollars.", 7),
        ("At 12:30 he had 6 pens.", 6),
        ("The trip takes 4 hours, from 8:00 to 12:00.", 4),
        ("So they need 3-5 days, on average 4 days.", 4),
        ("So a 12-inch pizza costs 9 dollars.", 9),
        ("| item | cost |\n| --- | --- |\n| total | 42 |", 42),
        ("He has 5 apples. He buys 3 more. He has 8 apples.", 8),
    ],
)
def test_conclusions(text, expected):
    """Rationales without a cue end in a conclusion; its last number is often one that was given, not found."""
    check(text, expected)


SURFACES = [
    "{}",
    "{}.",
    "The answer is {}.",
    "So the final answer is **{}**.",
    "After 3 steps and 17 more:\n#### {}",
    "3 x 7 = 21. Hence the result is $\\boxed{{{}}}$.",
    "Answer: {} apples",
    "Answer: {} (out of 999).",
    "The answer is not 99999 but {}.",
    "The answer is 99999. Wait, no. The answer is {}.",
    "x + y = {}",
    "Therefore, there are {} apples left.",
    "<answer>{}</answer>",
]


@pytest.mark.parametrize("surface", SURFACES)
def test_printed_numbers_are_read_back(surface):
    """A training label that is not read back as itself can never agree with the model that learnt it."""
    generator = random.Random(0)
    for _ in range(60):
        value = Fraction(generator.randint(-(10**6), 10**6), generator.choice([1, 1, 2, 3, 7, 8, 100, 1000]))
        written = [format_answer(value)]
        if value.denominator == 1:
            written += [f"{int(value):,}", f"{int(value)}.0", f"{int(value):,}.00", str(int(value)).replace("-", "−")]
        for form in written:
            text = surface.format(form)
            assert extract_answer(text, "number") == value, text
