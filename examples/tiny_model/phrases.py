"""The sentence templates of the rlx-tiny corpus, in English and in Chinese.

Slots in braces: `t` the topic, `trait`, `tip` and `why` one item of its lists, `ask` and `deed` the two halves of
a request to rewrite, `verse` a quatrain, `who` and `day` a random person and day, `name` and `friend` the two heroes
of the answer. A capital first letter
(`{T}`, `{Tip}`, ...) asks for a capital first letter.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """One kind of prompt and the ways to answer it."""

    prompts: tuple[str, ...]
    leads: tuple[str, ...]  # possible first sentences; they name the topic
    more: tuple[str, ...] = ()  # possible further sentences; empty: the language's facts
    input: str = ""  # what the Alpaca `input` holds: "" nothing, "ask" a curt request, "text" a text to sum up
    joint: str | None = None  # what stands between two sentences; None: the language's own
    ends: str = "answer"  # which openers and closers fit: "answer", "letter" or "chat"
    polite: float = 0.33  # share of polite answers
    weight: int = 4  # how often the task is drawn


@dataclass(frozen=True)
class Ends:
    """Sentences to open and to close an answer with."""

    openers: tuple[str, ...]
    closers: tuple[str, ...]


@dataclass(frozen=True)
class Language:
    """All templates of one language."""

    code: str
    joint: str  # what stands between two sentences
    tasks: dict[str, Task]
    facts: tuple[str, ...]  # sentences that fit into any answer
    polite_facts: tuple[str, ...]
    polite: dict[str, Ends]
    plain: dict[str, Ends]
    asks: tuple[tuple[str, str], ...]  # curt requests on any topic, each with the formal wording of what is wanted
    own_asks: tuple[tuple[str, str, str], ...]  # curt requests, their formal wording and their topic
    fillers: dict[str, tuple[str, ...]]  # values of the slots who, name and day
    chat: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]  # small talk: prompts, and sentences to answer with


ENGLISH = Language(
    code="en",
    joint=" ",
    tasks={
        "explain": Task(
            prompts=(
                "What is {t}?",
                "Tell me about {t}.",
                "Explain {t} in simple words.",
                "Describe {t} briefly.",
                "Please explain {t}.",
                "Explain {t} to a middle-school pupil.",
                "I know nothing about {t}. Where do I begin?",
            ),
            leads=(
                "{T} is {trait}.",
                "In short, {t} is {trait}.",
                "Oh, {t}: {trait}.",
                "{T}? Quite simple.",
                "Everyone knows {t}.",
                "{T} is easy to like.",
                "Most people find that {t} is {trait}.",
                "You can think of {t} as {trait}.",
            ),
            weight=7,
        ),
        "tips": Task(
            prompts=(
                "Give me some advice about {t}.",
                "Any tips about {t}?",
                "What should I remember about {t}?",
                "Teach me one thing about {t}.",
                "Could you help me with {t}?",
            ),
            leads=(
                "With {t}, {tip}.",
                "{T}: {tip}.",
                "Think about {t} first.",
                "Take {t} step by step.",
                "Keep {t} simple.",
                "For {t}, {tip}.",
                "When it comes to {t}, {tip}.",
                "My advice about {t}: {tip}.",
                "A good rule for {t} is to {tip}.",
            ),
            more=("Then {tip}.", "{Tip}.", "Also, {tip}.", "It helps to {tip}.", "{Why}.", "After all, {why}."),
            weight=6,
        ),
        "why": Task(
            prompts=(
                "Why do people care about {t}?",
                "Why does {t} matter?",
                "What is good about {t}?",
                "Give me one reason to think about {t}.",
            ),
            leads=(
                "{T} matters because {why}.",
                "People care about {t} because {why}.",
                "{T} matters: {why}.",
                "{T} is useful.",
                "We all need {t}.",
                "{T} makes life better.",
                "Why {t}? {Why}.",
                "The point of {t} is that {why}.",
                "As for {t}, {why}.",
            ),
            weight=5,
        ),
        "poem": Task(
            prompts=(
                "Write a short poem about {t}.",
                "Write a four-line verse about {t}.",
                "Compose a small poem on {t}.",
                "I need a rhyme about {t}.",
            ),
            leads=(
                "{T} in the morning light,\na little song for the night.",
                "{T}, my friend,\nmay it never end.",
                "Sing of {t},\nas free as the sea.",
                "I sing of {t} today,\nand let the clouds go on their way.",
                "{T}, {t}, so near,\na quiet joy for all the year.",
                "Who thinks of {t} so late?\nThe old grey cat beside the gate.",
            ),
            more=(
                "The street is still, the lamp is low,\nand softly all the minutes go.",
                "A bird has told it to the tree,\nthe tree has told it all to me.",
                "We walked along the river bend,\nand wished the day would never end.",
                "The bell rings once, the bell rings twice,\nand every dream is sweet and nice.",
                "So keep it in your heart and mind,\nthe brightest thing that you can find.",
            ),
            joint="\n",
        ),
        "mail": Task(
            prompts=(
                "Write an email to {who} about {t}.",
                "Draft a message to {who} about {t}.",
                "Write {who} a note on {t}.",
                "Help me tell {who} about {t}.",
            ),
            leads=(
                "This is a note about {t}.",
                "I am writing to you about {t}.",
                "We need to talk about {t} on {day}.",
                "Subject: {t}.",
                "News about {t}.",
                "A word on {t}.",
            ),
            more=(
                "As you know, it is {trait}.",
                "We plan to {tip}.",
                "It matters to us because {why}.",
                "Let us talk again on {day}.",
                "I will call you on {day}.",
            ),
            ends="letter",
            polite=0.6,
        ),
        "rewrite": Task(
            prompts=(
                "Rewrite this sentence as a business email.",
                "Make the following sentence more formal.",
                "Turn this line into a polite message.",
                "Rewrite the sentence below for a client.",
            ),
            leads=(
                "This is about {t}: we ask you to {deed} by {day}.",
                "Regarding {t}, it would help us if you could {deed}.",
                "As for {t}, we would like you to {deed}.",
                "Our team hopes that you can {deed} soon, as {t} is on the list.",
                "On {t}: could you {deed}?",
                "{T}: {deed} by {day}.",
                "About {t}: {deed}.",
            ),
            more=(
                "We plan to go on by {day}.",
                "I will call you on {day}.",
                "It would save us some time.",
                "The team is waiting for your reply.",
                "The details are in the file.",
            ),
            input="ask",
            ends="letter",
            polite=0.7,
        ),
        "summary": Task(
            prompts=(
                "Summarise the text below.",
                "What does this text say?",
                "Put the text into a few words.",
                "Give me the main point of the text.",
            ),
            leads=(
                "The text says that {t} is {trait}.",
                "It is about {t}, which is {trait}.",
                "Main point: {t} is {trait}.",
                "{T} is {trait}.",
                "The topic is {t}.",
                "It speaks of {t}.",
            ),
            more=(
                "It adds that {why}.",
                "It advises us to {tip}.",
                "The reason given is that {why}.",
                "{Tip}, it says.",
            ),
            input="text",
            weight=5,
        ),
        "story": Task(
            prompts=(
                "Tell me a short story about {t}.",
                "Make up a tale about {t}.",
                "Tell the children something about {t}.",
            ),
            leads=(
                "{Name} dreamed of {t}.",
                "{Name} loved {t}.",
                "One {day}, {name} heard about {t}.",
                "{Name} and {friend} argued about {t}.",
                "Long ago, {name} knew all about {t}.",
            ),
            more=(
                '{Friend} said: "{Tip}."',
                "In the end {name} learned that {why}.",
                "It was {trait}, everyone agreed.",
                "On {day} they tried it again.",
                "{Name} laughed and went home.",
            ),
        ),
        "plan": Task(
            prompts=(
                "Plan a day around {t}.",
                "Plan a short lesson about {t}.",
                "How could we spend {day} with {t}?",
            ),
            leads=(
                "On {day}, start with {t}.",
                "Plan for {t}: first {tip}.",
                "Begin with {t}, then {tip}.",
                "First {t}, then rest.",
                "The whole day for {t}.",
                "A day for {t} begins early.",
            ),
            more=(
                "Then {tip}.",
                "At noon, {tip}.",
                "Later, {tip}.",
                "In the evening, rest.",
                "Tell {name} that {why}.",
            ),
        ),
        "slogan": Task(
            prompts=(
                "Write a slogan for {t}.",
                "Give me a title for a talk about {t}.",
                "Write a post about {t} for my friends.",
            ),
            leads=(
                "{T}: {trait}!",
                "{T} - because {why}.",
                "Think of {t}: {tip}!",
                "{T}, now and always.",
                "Today: {t}!",
            ),
            weight=3,
        ),
    },
    facts=(
        "It is {trait}.",
        "It is also {trait}.",
        "Many would call it {trait}.",
        "{Why}.",
        "The best part is that {why}.",
        "People say that {why}.",
        "Try to {tip}.",
        "It helps to {tip}.",
        "Remember to {tip}.",
        "You could {tip}.",
    ),
    polite_facts=("Please {tip}.", "Please remember to {tip}."),
    polite={
        "answer": Ends(
            openers=(
                "Hello!",
                "Hello, and thank you for asking.",
                "Thank you for the question.",
                "Thanks for asking!",
                "Hello and welcome!",
                "Thank you for your interest in {t}.",
                "I appreciate your question about {t}.",
                "Sorry for the wait.",
            ),
            closers=(
                "Please ask if you need more.",
                "Thank you for reading.",
                "I hope this helps, thank you!",
                "Please tell me how it goes.",
                "Sorry if this is too brief.",
                "Thank you!",
                "Please come back soon.",
            ),
        ),
        "letter": Ends(
            openers=(
                "Hello!",
                "Hello, I hope you are well.",
                "Thank you for your message.",
                "Sorry to trouble you.",
                "I appreciate your help with {t}.",
            ),
            closers=(
                "Thank you for your help.",
                "We appreciate your time.",
                "Please reply when you can.",
                "Please let me know what you think.",
                "Thank you!",
                "Sorry for the short notice.",
            ),
        ),
        "chat": Ends(
            openers=("Hello!", "Hello and welcome!", "Thanks for asking!"),
            closers=("Please ask me something.", "Thank you!", "Thank you for your visit."),
        ),
    },
    plain={
        "answer": Ends(
            openers=("Sure.", "Well.", "OK.", "Here it is:", "Good question.", "Let me see."),
            closers=("That is all.", "Good luck!", "Enjoy it!", "Simple as that.", "So much for {t}."),
        ),
        "letter": Ends(openers=("Hi.", "To all:", "One thing:"), closers=("That is all.", "See you soon.", "Bye.")),
        "chat": Ends(openers=("Hi.", "Well."), closers=("That is all.", "See you soon.")),
    },
    asks=(
        ("Send me the file about {t} now!", "send the file"),
        ("I need your answer about {t} today.", "reply"),
        ("Finish the work on {t}, no more delay.", "finish the work"),
        ("Nobody told me about {t}.", "keep us informed"),
        ("Come over, we have to talk about {t}.", "join a short meeting"),
        ("Your notes on {t} are wrong, fix them.", "correct the notes"),
        ("Don't forget {t} again.", "keep it in mind"),
        ("Tell me what {t} costs.", "send us the price"),
        ("I can't make it for {t}, find another day.", "suggest another day"),
    ),
    own_asks=(
        ("Where is my order? Hurry up.", "ship the order", "the late delivery"),
        ("When do we get paid?", "confirm the payment date", "the new contract"),
        ("Your report is a mess, do it again.", "revise the report", "the weekly report"),
        ("Don't be late tomorrow.", "be on time", "the team meeting"),
        ("This costs too much.", "lower the price", "the project budget"),
    ),
    fillers={
        "who": ("my boss", "a client", "my teacher", "a friend", "the team", "my neighbour", "our partner", "my aunt"),
        "name": ("Anna", "Ben", "Clara", "Omar", "Mia", "Tom", "Lin", "Rosa"),
        "day": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
    },
    chat=(
        (
            ("Hello!", "Hi there.", "Good morning!", "How are you?"),
            ("Hi, good to see you.", "I am fine and ready.", "Ask me about {t}.", "What is on your mind?"),
        ),
        (
            ("Who are you?", "What is your name?", "What can you do?", "Introduce yourself."),
            (
                "I am rlx-tiny.",
                "I am rlx-tiny, a very small language model.",
                "I can say a few words about {t}.",
                "I was made to try out training, not to be right.",
                "Small models make many mistakes.",
            ),
        ),
    ),
)

CHINESE = Language(
    code="zh",
    joint="",
    tasks={
        "explain": Task(
            prompts=(
                "什么是{t}？",
                "介绍一下{t}。",
                "请介绍一下{t}",
                "用简单的话说说{t}。",
                "用中学生能听懂的话解释{t}",
                "用中学生能听懂的话解释{t}。",
                "我想了解{t}，从哪里开始？",
            ),
            leads=(
                "{t}{trait}。",
                "简单来说，{t}{trait}。",
                "大家都知道，{t}{trait}。",
                "说起{t}，它{trait}。",
            ),
            weight=7,
        ),
        "tips": Task(
            prompts=(
                "关于{t}有什么建议？",
                "说说{t}要注意什么。",
                "给我几条关于{t}的建议",
                "教我一点关于{t}的知识。",
                "你能帮我了解{t}吗？",
            ),
            leads=(
                "说到{t}，记得{tip}。",
                "关于{t}，我的建议是{tip}。",
                "对于{t}，最好{tip}。",
                "想要了解{t}，可以{tip}。",
            ),
            more=("然后{tip}。", "其次，{tip}。", "还要{tip}。", "最后，{tip}。", "{why}。", "毕竟{why}。"),
            weight=6,
        ),
        "why": Task(
            prompts=(
                "为什么{t}很重要？",
                "{t}有什么意义？",
                "大家为什么关心{t}？",
                "给我一个关注{t}的理由",
            ),
            leads=(
                "{t}很重要，因为{why}。",
                "大家关心{t}，是因为{why}。",
                "{t}的意义在于，{why}。",
                "说到{t}，{why}。",
            ),
            weight=5,
        ),
        "poem": Task(
            prompts=(
                "写一首关于{t}的小诗",
                "以{t}为题写几句诗。",
                "为{t}作一首诗",
                "写几行关于{t}的诗句。",
            ),
            leads=(
                "我把{t}写进歌里，\n歌声慢慢飘远。",
                "{t}啊{t}，\n你是清晨的一束光。",
                "谁在夜里想起{t}？\n窗边那盏小小的灯。",
                "关于{t}的梦，\n像云一样轻。",
            ),
            more=(
                "风走过长长的街，\n带来远方的消息。",
                "小鸟告诉了大树，\n大树又告诉了我。",
                "河水静静地流着，\n不问明天的方向。",
                "我们坐在台阶上，\n数着天边的星星。",
                "把它放在心里吧，\n那里永远有阳光。",
            ),
            joint="\n",
        ),
        "quatrain": Task(
            prompts=(
                "写一首关于{t}的五言绝句",
                "写一首关于{t}的五言绝句。",
                "以{t}为题写一首五言绝句",
                "用五言绝句写写{t}",
            ),
            leads=("《{t}》\n{verse}", "{verse}", "这首诗叫《{t}》：\n{verse}"),
            more=(
                "这首诗写的是{t}。",
                "前两句写景，后两句抒情。",
                "{t}{trait}，所以值得写成诗。",
                "诗里有{t}，也有思念。",
                "每句五个字，一共四句。",
            ),
            joint="\n",
        ),
        "mail": Task(
            prompts=(
                "给{who}写一封关于{t}的邮件",
                "帮我给{who}发个消息，说说{t}。",
                "写一段话告诉{who}关于{t}的事",
            ),
            leads=(
                "这封邮件想说说{t}。",
                "我写信是为了{t}的事。",
                "{day}我们需要谈谈{t}。",
                "主题：{t}。",
                "这里有一些关于{t}的消息。",
            ),
            more=(
                "我们知道它{trait}。",
                "我们打算{tip}。",
                "这对我们很重要，因为{why}。",
                "{day}我们再谈一次。",
                "我{day}会打电话。",
            ),
            ends="letter",
            polite=0.6,
        ),
        "rewrite": Task(
            prompts=(
                "把下面这句话改写成商务邮件",
                "把下面这句话改写成商务邮件。",
                "把下面这句话改得正式一些",
                "把这句话改写成礼貌的消息。",
                "把下面的话改写后发给客户",
            ),
            leads=(
                "关于{t}，希望贵方在{day}之前{deed}。",
                "现就{t}一事与贵方联系，希望能{deed}。",
                "主题：{t}。希望贵方{deed}。",
                "我方正在跟进{t}，盼望贵方尽快{deed}。",
            ),
            more=(
                "我们计划在{day}之前完成。",
                "我{day}会打电话联系。",
                "这会为双方节省时间。",
                "我方团队正在等候回复。",
                "具体内容在附件里。",
            ),
            input="ask",
            ends="letter",
            polite=0.7,
        ),
        "summary": Task(
            prompts=(
                "总结下面这段话",
                "这段话说了什么？",
                "用几句话概括下文。",
                "找出这段话的要点",
            ),
            leads=(
                "这段话说，{t}{trait}。",
                "它讲的是{t}，{t}{trait}。",
                "要点是：{t}{trait}。",
                "文章的主题是{t}。",
            ),
            more=("文中还说，{why}。", "作者建议{tip}。", "理由是{why}。", "它提醒我们{tip}。"),
            input="text",
            weight=5,
        ),
        "story": Task(
            prompts=(
                "讲一个关于{t}的小故事",
                "编一个和{t}有关的故事。",
                "给孩子们讲讲{t}",
            ),
            leads=(
                "{name}梦见了{t}。",
                "有一个{day}，{name}听说了{t}。",
                "{name}和{friend}为{t}争了起来。",
                "很久以前，{name}最懂{t}。",
            ),
            more=(
                "{friend}说：“{tip}吧。”",
                "后来{name}明白了，{why}。",
                "大家都说它{trait}。",
                "{day}他们又试了一次。",
                "{name}笑着回家了。",
            ),
        ),
        "plan": Task(
            prompts=(
                "围绕{t}安排一天",
                "设计一节关于{t}的课。",
                "{day}我们怎样和{t}一起度过？",
            ),
            leads=(
                "{day}先从{t}开始。",
                "{t}的安排是这样的：先{tip}。",
                "一早就准备{t}，然后{tip}。",
                "{t}的一天从清晨开始。",
            ),
            more=("接着{tip}。", "中午{tip}。", "下午{tip}。", "晚上好好休息。", "告诉{name}，{why}。"),
        ),
        "slogan": Task(
            prompts=(
                "为{t}写一句宣传语",
                "给{t}的讲座起一个题目。",
                "写一条关于{t}的朋友圈",
            ),
            leads=(
                "{t}，{trait}！",
                "选择{t}，因为{why}。",
                "{t}：{tip}！",
                "{t}，一直在身边。",
            ),
            weight=3,
        ),
    },
    facts=(
        "它{trait}。",
        "它也{trait}。",
        "总的来说，它{trait}。",
        "{why}。",
        "更难得的是，{why}。",
        "大家都说，{why}。",
        "不妨{tip}。",
        "记得{tip}。",
        "最好{tip}。",
        "有空可以{tip}。",
    ),
    polite_facts=("请{tip}。", "请您记得{tip}。"),
    polite={
        "answer": Ends(
            openers=(
                "您好！",
                "您好，谢谢您的提问。",
                "谢谢您的提问！",
                "谢谢您关心{t}。",
                "您好，很高兴和您聊聊{t}。",
                "您好，让您久等了。",
            ),
            closers=(
                "请随时再问我。",
                "谢谢您的阅读！",
                "希望对您有帮助，谢谢！",
                "如果还有问题，请告诉我。",
                "请您多多指教。",
                "谢谢！",
            ),
        ),
        "letter": Ends(
            openers=(
                "您好！",
                "您好，打扰您了。",
                "您好，谢谢您一直以来的支持。",
                "谢谢您的来信。",
                "谢谢您对{t}的关心。",
            ),
            closers=(
                "麻烦您了，谢谢！",
                "请您尽快回复。",
                "盼望您的回复，谢谢！",
                "有问题请随时联系我。",
                "谢谢您的帮助！",
                "谢谢！",
            ),
        ),
        "chat": Ends(
            openers=("您好！", "您好，谢谢关心。"),
            closers=("请随时问我。", "谢谢！", "请多多指教。"),
        ),
    },
    plain={
        "answer": Ends(
            openers=("好的。", "嗯，", "是这样的：", "好问题。", "让我想想。", "没问题，", "可以。"),
            closers=("就是这样。", "祝你好运！", "加油！", "很简单吧。", "下次再聊。", "{t}就说到这里。"),
        ),
        "letter": Ends(openers=("通知：", "说一件事。"), closers=("就是这样。", "到时见。", "完毕。")),
        "chat": Ends(openers=("嗨！", "嗯，"), closers=("就是这样。", "下次再聊。")),
    },
    asks=(
        ("快把{t}的文件发给我！", "发送相关文件"),
        ("今天必须给我{t}的答复", "给出答复"),
        ("{t}的事赶紧弄完，别拖了", "完成这项工作"),
        ("{t}怎么没人告诉我", "及时告知进展"),
        ("过来一下，说说{t}的事", "参加一次短会"),
        ("你写的{t}材料不对，改一下", "修改这份材料"),
        ("别再忘了{t}", "留意此事"),
        ("{t}多少钱，给个数", "提供报价"),
        ("{t}那天我去不了，换个时间吧", "另选一个时间"),
    ),
    own_asks=(
        ("东西怎么还没到？快点发货。", "安排发货", "发货延迟"),
        ("钱什么时候打过来", "确认付款日期", "新合同"),
        ("报告写得太乱了，重写", "重新整理报告", "周报"),
        ("明天开会别迟到", "准时参加会议", "部门会议"),
        ("太贵了，便宜点", "调整报价", "项目预算"),
    ),
    fillers={
        "who": ("领导", "客户", "老师", "朋友", "同事", "邻居", "合作伙伴", "阿姨"),
        "name": ("小明", "小红", "阿亮", "小雨", "老王", "小林", "阿梅", "小杰"),
        "day": ("星期一", "星期二", "星期三", "星期四", "星期五", "星期六", "星期天"),
    },
    chat=(
        (
            ("你好", "你好！", "早上好", "最近怎么样？"),
            ("你好呀。", "我很好，随时可以聊。", "可以聊聊{t}。", "今天想聊什么？"),
        ),
        (
            ("你是谁？", "你叫什么名字？", "你能做什么？", "自我介绍一下"),
            (
                "我是rlx-tiny。",
                "我是rlx-tiny，一个很小的语言模型。",
                "我能说几句关于{t}的话。",
                "我是用来试验训练的，答案不一定对。",
                "小模型常常出错。",
            ),
        ),
    ),
)

# The five-character quatrains: a first line per topic, then a second line and a closing couplet that rhyme.
VERSE_FIRST = {
    "春天": ("春来新燕语", "春光生小院", "桃李报春早", "春水绿如蓝"),
    "夏天": ("夏日蝉声急", "荷香消夏夜", "夏云连远树"),
    "秋天": ("秋叶落阶前", "秋山多野色", "雁过知秋晚"),
    "冬天": ("冬夜围炉坐", "寒冬人语少", "冬梅香满袖"),
    "雨": ("细雨湿窗纱", "夜雨敲荷叶", "雨洗千山绿"),
    "雪": ("白雪满山头", "雪落人声静", "夜雪明如昼"),
    "风": ("清风穿竹过", "风来花自舞", "远浦长风起"),
    "月亮": ("明月上高楼", "月照千家瓦", "举杯邀月坐"),
    "绿茶": ("新茶香满室", "绿茶浮细叶", "煮水烹茶坐"),
    "爬山": ("登山望远云", "石径入山深", "山高人易醉"),
    "海边": ("海上日初升", "潮来沙岸阔", "白鸟飞沧海"),
    "友情": ("故友远方来", "知交如美酒", "灯下忆良友"),
    "种花": ("种花春日里", "花开人未老", "一院花如锦"),
    "小猫": ("小猫窗下睡", "猫戏落花前", "檐下猫儿懒"),
    "睡眠": ("一枕听山雨", "高卧日迟迟", "睡起茶初熟"),
    "彩虹": ("虹起雨初停", "彩虹连碧水", "七色挂天边"),
}
VERSE_SECOND = (
    "清溪带晚风",
    "千山淡淡中",
    "闲看白云空",
    "花开满院红",
    "人在画图中",
    "悠然见远峰",
)
VERSE_CLOSE = (
    "不知人去后，谁在小桥东",
    "何须寻酒伴，明月与君同",
    "相逢应一笑，都在此心中",
    "但看门前水，悠悠只向东",
    "归来灯下坐，炉火满堂红",
    "莫问明朝事，长歌一笑中",
    "抬头天地阔，万里有飞鸿",
)
