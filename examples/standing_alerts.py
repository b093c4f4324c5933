"""Alerts by webhook: people store queries, articles stream past, and each that somebody waits for is posted, once.

    python examples/standing_alerts.py news http://127.0.0.1:8080/alerts

The matches of a standing query are a view, and a WEBHOOK sink follows it: signed, in order, at least once, with an id by
which the receiver knows a request that comes again.
"""

from __future__ import annotations

import sys

import headwater as hw


def declare(ws: hw.Workspace, url: str, secret: str) -> None:
    """Articles, the queries over them, and who is told."""
    ws.sql(
        f"""
        CREATE TOPIC IF NOT EXISTS articles (id BIGINT, title STRING, body STRING, words INT, PRIMARY KEY (id));
        CREATE STANDING QUERY IF NOT EXISTS news ON articles (title, body, words)
          WITH (language = 'english', show = 'title');
        CREATE SINK IF NOT EXISTS alerts FROM news INTO WEBHOOK
          WITH (url = '{url}', secret = '{secret}', key = 'query_id, document_id');
        """
    )


def subscribe(ws: hw.Workspace) -> None:
    """What some people wait for."""
    news = ws.standing("news")
    news.add("spark", 'title:spark AND (stream* OR "change data") AND NOT job', owner="ann")
    news.add("long reads", "words > 2000 AND title LIKE '%Spark%'", kind="sql", owner="bob")


def publish(ws: hw.Workspace) -> None:
    """Some articles; one of them is corrected later."""
    articles = ws.topic("articles")
    articles.append(
        [
            {"id": 1, "title": "Spark streams", "body": "Change data capture, step by step.", "words": 2500},
            {"id": 2, "title": "A Spark job", "body": "We stream and we hire.", "words": 300},
            {"id": 3, "title": "Rivers", "body": "Where streams begin.", "words": 4000},
        ]
    )
    ws.run()
    articles.append([{"id": 1, "title": "Flink streams", "body": "Corrected.", "words": 2500}])
    ws.run()


def main(folder: str, url: str) -> None:
    """Make a workspace, store queries, publish, and tell."""
    with hw.open(folder) as ws:
        declare(ws, url, "a secret of some length")
        subscribe(ws)
        publish(ws)


if __name__ == "__main__":
    main(*sys.argv[1:])
