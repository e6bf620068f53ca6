-- 28 groups of texts.
select
    count(*) as groups,
    sum(n) as rows,
    sum(quantity) as quantity,
    max(price) as price
from (
    select
        count(*) as n,
        sum(l_quantity) as quantity,
        max(l_extendedprice) as price
    from lineitem
    group by l_shipinstruct, l_shipmode
) as per_group;
