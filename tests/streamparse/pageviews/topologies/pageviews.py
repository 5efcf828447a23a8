"""
Page views: counted in batches, one from tick to tick
"""

from bolts import BrokenBolt, LatestBolt, ViewCountBolt, VisitBolt
from spouts import PageviewSpout
from streamparse import Grouping, Topology


class Pageviews(Topology):
    config = {"topology.message.timeout.secs": 60, "topology.tick.tuple.freq.secs": 1}

    pageview_spout = PageviewSpout.spec(name="pageview-spout")
    visit_bolt = VisitBolt.spec(inputs=[pageview_spout], name="visit-bolt", par=2)
    count_bolt = ViewCountBolt.spec(inputs={visit_bolt["views"]: Grouping.fields("url")}, par=2)
    latest_bolt = LatestBolt.spec(inputs={count_bolt: Grouping.GLOBAL})
    broken_bolt = BrokenBolt.spec(
        inputs={visit_bolt["broken"]: Grouping.SHUFFLE}, config={"topology.tick.tuple.freq.secs": 10}
    )
