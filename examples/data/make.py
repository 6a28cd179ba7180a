"""Writes train.parquet, three prompts with answers in Alpaca layout."""

from pathlib import Path

import pandas as pd

ROWS = [
    {
        "instruction": "写一首关于春天的五言绝句",
        "input": "",
        "output": "细雨润青苔，东风拂柳来。\n推窗闻鸟语，一夜杏花开。",
    },
    {
        "instruction": "用中学生能听懂的话解释量子纠缠",
        "input": "",
        "output": (
            "想象有两枚神奇的硬币，它们是一起造出来的。你把一枚留在身边，另一枚送到很远的地方。"
            "在看之前，谁也说不准哪面朝上；可是只要你看到自己这枚是正面，另一枚被看时就一定是反面，每次都能对上。"
            "量子纠缠说的就是两个粒子之间的这种联系：单独看，每个结果都是随机的；放在一起比较，结果总是相关的。"
            "不过它不能用来传递消息，因为你没法决定自己的硬币是正面还是反面。"
        ),
    },
    {
        "instruction": "把下面这句话改写成商务邮件",
        "input": "东西怎么还没到？快点发货。",
        "output": (
            "主题：关于订单发货进度的咨询\n\n您好：\n\n"
            "我方此前订购的货物至今尚未收到。麻烦您协助查询目前的发货进度，并告知预计的到货日期，以便我方安排后续工作。\n\n"
            "如有需要我方配合之处，请随时与我联系。感谢您的支持！\n\n此致\n敬礼"
        ),
    },
]

if __name__ == "__main__":
    pd.DataFrame(ROWS).to_parquet(Path(__file__).with_name("train.parquet"), index=False)
