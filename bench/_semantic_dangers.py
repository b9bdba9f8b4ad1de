"""Pairs of questions that are near in wording and differ in meaning, for bench/semantic.py.

Each kind has at least 100 pairs: some words or phrases, in each of some sentences. `|` separates the two of a pair. The
rules were written without these pairs, but for two: an abbreviation has no plural (https), and a function word in place
of a content word counts as exchanged. `HARMLESS` are pairs that mean the same.

    python bench/_semantic_dangers.py > pairs.tsv
"""

from __future__ import annotations

from typing import NamedTuple


class DangerousPair(NamedTuple):
    """Two questions with different answers."""

    kind: str
    one: str
    other: str


SENTENCES: dict[str, tuple[tuple[str, str], ...]] = {
    "number": (
        ("What does a {} dose of insulin do?|Should I take a {} dose of insulin?|Is a {} dose of insulin common?",
         "double|triple;single|double;half|full;second|third;first|second;tenfold|twofold"),
        ("How do I take this drug {} a week?|Is it normal to bathe a cat {} a week?|Can I wax a car {} a year?",
         "once|twice;twice|three times;once|thrice;two times|five times"),
        ("How many people fit into {} rooms?|What do {} eggs weigh?|Who sells {} chairs?",
         "a dozen|two dozen;seven|eleven;forty|fourteen;a hundred|a thousand;15|50;1,500|15,000;two|2.5;ten|-10;.5|5"),
        ("Who was Pope Pius {}?|What happened in Star Wars Part {}?|Summarize Rocky {}",
         "II|III;IV|VI;IX|XI;V|X;XII|VII"),
        ("How much is {} of a litre?|What is {} of an inch in mm?|Is {} of the cake too much?",
         "½|¼;⅓|⅔;1/2|1/4;a half|a quarter;3/4|1/4"),
        ("What is the graph of x{}?|How do I integrate y{}?|When is n{} even?", "²|³;²|⁴;^2|^3;^2|^-2"),
        ("Who won the {} election in Ohio?|Which team came {} in 1998?",
         "first|second;third|fourth;21st|22nd;9th|19th"),
    ),
    "unit": (
        ("Is {} a lethal dose of arsenic?|Can a child take {} of iron?|What does {} of zinc do?",
         "5 mg|5 g;50 mcg|50 mg;1 µg|1 mg;3 ounces|3 grams;2 grains|2 grams;4 kg|4 mg"),
        ("How long is {}?|Can I jump {}?|Is {} a long way to swim?",
         "9 feet|9 fathoms;20 miles|20 kilometres;6 inches|6 feet;7 mm|7 cm;2 furlongs|2 miles;3 yards|3 metres"),
        ("How fast is {}?|Is {} too fast in town?|Can a horse run {}?", "30 mph|30 km;80 knots|80 mph;40 kmh|40 mph"),
        ("How much data is {}?|How long does it take to download {}?|Does {} fit on a stick?",
         "5 MB|5 GB;2 gigabits|2 gigabytes;8 kb|8 mb;3 TB|3 GB;100 Mbit|100 Mbyte"),
        ("What does {} buy?|Can I live on {} a day?|Is {} a good price for a bike?",
         "100 euros|100 yen;90 dollars|90 pesos;80 rubles|80 rupees;50 pounds|50 cents;70 francs|70 zlotys"),
        ("Does a bottle of {} last a week?|How heavy is {} of water?|What holds {} of soup?",
         "2 litres|2 gallons;3 pints|3 quarts;1 cup|1 tablespoon;5 ml|5 dl;4 teaspoons|4 tablespoons"),
        ("Is {} enough to learn the piano?|Can a lawsuit take {}?|How long does {} feel?",
         "a week|a month;two decades|two centuries;three days|three hours;a fortnight|a year;2 minutes|2 seconds"),
        ("Is {} dangerous for people?|What can {} do?",
         "9 volts|9 watts;20 amps|20 ohms;10 joules|10 newtons;6 bar|6 psi"),
    ),
    "date": (
        ("What happened in {} of 1944?|Who died in {} of 1989?|Was it warm in {} of 2003?",
         "June|July;May|March;spring|autumn;summer|winter;February|December"),
        ("Is the pool open on {}?|Do banks work on {}?|Which saint is honoured on {}?",
         "Saturdays|Sundays;Mondays|Fridays;Christmas Day|New Year's Day;Easter|Halloween;Labor Day|Veterans Day"),
        ("What music was popular in the {}?|Who were the stars of the {}?|What did cars cost in the {}?",
         "seventies|sixties;1920s|1930s;nineties|fifties;80s|90s;twenties|forties"),
        ("Should I water plants in the {}?|Do owls hunt in the {}?|Is traffic bad in the {}?",
         "morning|evening;afternoon|morning;night|morning"),
        ("Does the shop close at {}?|Is the bell rung at {}?|Can I call at {}?",
         "noon|midnight;5 am|5 pm;6:30|8:30;10:15|10:45"),
        ("What was life like in the {} century?|Who ruled Spain in the {} century?|Which art is from the {} century?",
         "12th|13th;fifth|sixth;18th|19th;second|third"),
        ("Which tests are done in the {} trimester?|What do I learn in the {} grade?|What is due in the {} quarter?",
         "first|second;second|third;third|fourth"),
        ("Who was born on {}?|What is celebrated on {}?",
         "May 3|May 13;July 4|July 14;2 August|2 April;June 1|June 21;March 9|May 9;10 May|12 May;1 April|11 April"),
    ),
    "negation by prefix": (
        ("Is {} dangerous?|What does {} mean?|How common is {}?|Explain {}|What causes {}?|Can {} be cured?",
         "hyperglycemia|hypoglycemia;tachycardia|bradycardia;hyperkalemia|hypokalemia;hypertonia|hypotonia;"
         "overfeeding|underfeeding;intolerance|tolerance;immaturity|maturity"),
        ("What is a {} person?|How do I describe a {} character?|Is it good to be {}?|Who is called {}?",
         "responsible|irresponsible;patient|impatient;logical|illogical;honest|dishonest;kind|unkind;sensitive|insensitive;"
         "violent|nonviolent;moral|amoral"),
        ("How do I {} the device?|Can I {} the file?|When should I {} it?|What happens if I {} it?",
         "install|uninstall;encrypt|decrypt;assemble|disassemble;lock|unlock;activate|deactivate;mount|unmount;wind|unwind"),
        ("What does an {} cost?|Who pays an {}?",
         "import|export;intern|extern;employer|employee;interviewer|interviewee"),
        ("Is the mushroom {}?|Is the contract {}?|Are the results {}?",
         "edible|inedible;valid|invalid;reversible|irreversible;harmful|harmless;useful|useless;significant|insignificant"),
    ),
    "negation by words": (
        ("How do I {} an audit?|Should I {} a lawsuit?|Can I {} a fight?",
         "face|avoid;win|lose;start|prevent;cause|stay away from"),
        ("What do I do {} a passport?|Can I fly {} a passport?|Who travels {} a passport?",
         "with|without;if I have|if I lack;when I have|unless I have"),
        ("Which plants {} sunlight?|Which animals {} water?|Which people {} sleep?",
         "need|do not need;like|dislike;love|never need;want|refuse;need|hardly need"),
        ("Why does the engine {}?|What if the alarm {}?|Can the pump {}?",
         "start|not start;ring|fail to ring;stop|keep running;work|no longer work;turn on|turn off"),
        ("How can I {} ants?|Where do I {} ants?|Is it hard to {} ants?",
         "keep|get rid of;feed|kill;attract|repel;find|avoid"),
        ("Is there {} sugar in the sauce?|Is there {} risk in surgery?|Was there {} rain in Peru?",
         "any|no;some|hardly any;much|barely any;a lot of|never"),
        ("Who {} the plan?|Who has {} the vaccine?|Which party {} the law?",
         "supported|opposed;accepted|rejected;approved|denied;praised|criticised;signed|refused to sign"),
        ("Can everyone {} the exam?|Did nobody {} the exam?", "pass|fail;take|skip;repeat|avoid"),
        ("What may I eat {} nuts?|Which cakes are {} nuts?", "with|without;made with|free of;full of|free from"),
    ),
    "antonym": (
        ("How do I {} the bolt?|Can I {} the strap?|When do I {} the lid?",
         "tighten|loosen;raise|lower;attach|detach;bend|straighten;stretch|compress"),
        ("What is the {} of a company?|How is the {} taxed?|Who reports the {}?",
         "profit|loss;income|expense;asset|liability;revenue|debt;surplus|deficit"),
        ("What are the duties of a {}?|Can a {} sue?|Who protects a {}?",
         "landlord|tenant;buyer|seller;plaintiff|defendant;creditor|debtor;teacher|student;parent|child;doctor|patient"),
        ("Why is the sauce {}?|Why is my skin {}?|What makes metal {}?",
         "thick|thin;dry|oily;hard|soft;rough|smooth;pale|dark;hot|cold;rigid|flexible"),
        ("How do I treat {}?|Who suffers from {}?|What relieves {}?",
         "constipation|diarrhea;insomnia|sleepiness;fever|chills;obesity|anorexia;nearsightedness|farsightedness"),
        ("What is a {} market?|Who wins in a {} market?", "bull|bear;rising|falling;strong|weak;buyers|sellers"),
        ("Is it {} to swim here?|Is it {} to smoke in Rome?",
         "legal|illegal;safe|unsafe;allowed|forbidden;wise|foolish"),
    ),
    "entity": (
        ("what is the currency of {}?|where is {}?|who governs {}?|what do people eat in {}?",
         "niger|nigeria;slovakia|slovenia;iran|iraq;norway|finland;dominica|grenada;guinea|guyana;mali|malawi"),
        ("what is {} for?|is {} safe in pregnancy?|how is {} taken?|who makes {}?",
         "metformin|metoprolol;lamictal|lamisil;zantac|xanax;prednisone|prednisolone;clonidine|clonazepam;zyrtec|zyprexa"),
        ("how do i install {}?|how do i update {}?|is {} free?|who wrote {}?",
         "postgres|mysql;vim|emacs;docker|podman;numpy|scipy;java|javascript;debian|arch"),
        ("Who founded {}?|Is {} listed on the stock market?|{} return policy?",
         "nike|puma;ford|fiat;Adobe|Oracle;Visa|Mastercard;Delta|United;Sony|Sharp"),
        ("what is the boiling point of {}?|is {} toxic?|what is {} used for?",
         "methanol|ethanol;sulfate|sulfite;sodium|potassium;nitrite|nitrate;acetone|acetate;arsenic|argon"),
        ("what is vitamin {}?|where is vitamin {} found?|why is vitamin {} needed?", "a|b;c|d;e|k;b6|b12;d|k"),
    ),
    "role": (
        ("Can a {} sue a {}?|Can a {} fire a {}?|Does a {} pay a {}?|Who trains, a {} or a {}?|Should a {} obey a {}?",
         "nurse,doctor;tenant,landlord;clerk,judge;player,coach;driver,owner"),
        ("Is {} larger than {}?|Why is {} better than {}?|Is {} older than {}?",
         "oak,pine;iron,tin;Rome,Athens;tennis,golf;cheese,butter;Mars,Venus"),
        ("How do I get from {} to {}?|How do I convert {} to {}?|What does it cost to move from {} to {}?",
         "york,leeds;png,jpeg;Oslo,Rome;celsius,kelvin;android,iphone;spain,france"),
        ("Did {} defeat {}?|Did {} marry {}?|Who did {} invite, {}?|Did {} teach {}?",
         "anna,ben;plato,socrates;rome,carthage;france,prussia;lisa,tom"),
        ("Translate from {} into {}|Explain {} before {}|Does {} come after {}?",
         "dutch,greek;lunch,prayer;monday,sunday;class,sport;latin,czech;rent,tax;swedish,danish"),
    ),
    "code": (
        ("What does a {} b mean?|What is x {} y in C?|When is p {} q true?",
         "<|>;<=|>=;==|!=;&&||;+|-;<<|>>;->|=>;*|**"),
        ("What does chmod {} do?|Is chmod {} dangerous?|When do I use chmod {}?",
         "a+x|a-x;u+w|u-w;644|755;777|700;g+r|g-r"),
        ("What does tar {} do?|Explain grep {}|What is {} in ls?", "-x|-c;-v|-i;-r|-R;-a|-A;--all|--almost-all"),
        ("How do I use {} in pandas?|What does {} return?|Is {} slow?",
         "read_csv|to_csv;df.loc|df.iloc;merge()|concat();argmin|argmax;floor()|ceil();np.sum|np.prod"),
        ("How do I {} a branch in git?|What happens if I {} a commit?|Can I {} a tag?",
         "merge|rebase;push|pull;create|delete;revert|amend;fetch|drop"),
        ("How do I write a {} loop?|What is a {} function?|Is a {} list fast?",
         "for|while;public|private;static|dynamic;sync|async;recursive|iterative;linked|sorted"),
        ("Which port does {} use?|What is {} in one sentence?|How secure is {}?",
         "http|https;ssh|telnet;imap|smtp;tcp|udp;ftp|sftp;md5|sha256"),
    ),
    "disguise": (
        ("Should I {} take aspirin?|Is it {} safe to swim?|Do I {} need a visa?|Why does it {} rain?",
         "ｎｏｔ|;n.o.t|;n0t|;n\u200bo\u200bt|;𝐧𝐨𝐭|;no\u00adt|;NOT|;n-o-t|;nоt|"),
        ("How do I treat a {} wound?|Is {} a danger?|What is {}?|Who studies {}?",
         "desert|dessert;angel|angle;martial|marital;prostate|prostrate;moral|morale;statue|statute;casual|causal;"
         "cavalry|calvary;trial|trail;diary|dairy;plague|plaque;perspective|prospective;bazaar|bizarre;palate|palette;ingenious|ingenuous;dye|die"),
    ),
    "quantifier": (
        ("Are {} bats blind?|Do {} birds fly?|Can {} snakes swim?|Are {} metals magnetic?",
         "all|some;all|any;most|all;some|no;every|few;all|only;many|few"),
        ("{} I wear a mask on board?|{} I tell my boss?|{} I sign the form?|{} I stop the treatment?",
         "Must|May;Should|Can;Must|Should;Will|Did;May|Should;Did|Will"),
        ("Is {} tea allowed before surgery?|Does {} salt melt ice?|Is {} cash accepted?",
         "only|also;just|even;only|any;no|only"),
        ("Who wrote a song {} Mozart?|Find paintings {} Goya|Which book {} Freud is best?|Name films {} Welles",
         "about|by;for|against;from|about;with|without;before|after"),
        ("Is he {} late?|Does it {} hurt?|Do cats {} bite?",
         "always|never;usually|rarely;often|seldom;sometimes|always;never|sometimes"),
        ("Is it {} than gold?|Is it the {} river?|Is this town {} than Bath?",
         "heavier|lighter;longer|longest;more expensive|less expensive;bigger|smaller;older|younger"),
        ("Can I have at {} two guests?|Do I need at {} three votes?|Is it worth at {} ten dollars?",
         "least|most;most|least"),
        ("What are {} of asthma?|Name {} of measles|List {} of stress",
         "symptoms|treatments;causes|effects;signs|cures;benefits|risks"),
    ),
}  # fmt: skip

HARMLESS = (
    ("How do I reset my password?", "How can I reset my password?"),
    ("How do I reset my password?", "Please tell me how to reset my password"),
    ("What is the capital of Peru?", "what's the capital of Peru"),
    ("What is the capital of Peru?", "Could you tell me what the capital of Peru is?"),
    ("How many calories does ½ cup of rice have?", "How many calories does 1/2 cup of rice have?"),
    ("What does 2,500 dollars buy?", "what do twenty five hundred dollars buy"),
    ("How heavy is 5 kg?", "How heavy is 5000 g?"),
    ("What is x² plus y²?", "What is x^2 + y^2?"),
    ("What is 3 plus 4?", "What is 3 + 4?"),
    ("Summarize World War II", "Summarize World War 2"),
    ("Who won the 3rd race?", "Who won the third race?"),
    ("Why can't penguins fly?", "Why can not penguins fly?"),
    ("What is a naïve estimate of the cost?", "What is a nai\u0308ve estimate of the cost?"),
    ("What does the ﬁrst law say?", "What does the first law say?"),
    ("What was popular in the eighties?", "What was popular in the 1980s?"),
    ("Is it cold at -5 degrees?", "Is it cold at minus 5 degrees?"),
    ("What should I cook for twelve guests?", "What should I cook for a dozen guests?"),
    ("How long does it take to boil an egg?", "How long does it take to boil one egg?"),
    ("Tell me about the U.S.A.", "Tell me about the USA"),
    ("How do I bake bread?", "Hi, how would I bake bread? Thanks"),
)
"""Pairs that mean the same: none may be vetoed."""


def dangerous_pairs() -> list[DangerousPair]:
    """Return all pairs, by kind."""
    found: list[DangerousPair] = []
    for kind, groups in SENTENCES.items():
        for sentences, fillers in groups:
            for sentence in sentences.split("|"):
                found += [DangerousPair(kind, *filled(kind, sentence, filler)) for filler in fillers.split(";")]
    return found


def filled(kind: str, sentence: str, filler: str) -> tuple[str, str]:
    """Return a sentence with both fillers; of a role, with its two names in either order."""
    if kind == "role":
        one, other = filler.split(",")
        return sentence.format(one, other), sentence.format(other, one)
    one, _, other = ("&&", "", "||") if filler == "&&||" else filler.partition("|")
    return tuple(" ".join(sentence.format(each).split()) for each in (one, other))  # type: ignore[return-value]


if __name__ == "__main__":
    for pair in dangerous_pairs():
        print("\t".join(pair))
