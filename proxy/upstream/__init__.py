"""Who answers: the upstreams, how they are asked, and the scripted one that needs no key and no network."""
