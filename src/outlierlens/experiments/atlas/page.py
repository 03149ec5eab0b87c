def page(session, call):
    raise SystemExit(1)
