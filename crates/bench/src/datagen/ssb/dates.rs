//! The table of days, from 1992-01-01 to 1998-12-31.

use tpchgen::dates::{MIN_GENERATE_DATE, TOTAL_DATE_RANGE, TPCHDate};

use super::{Columns, numbers, texts};

/// The number of days.
pub(super) const DAYS: i32 = TOTAL_DATE_RANGE;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

const WEEKDAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// The first day was a Wednesday.
const FIRST_WEEKDAY: i32 = 3;

/// Months and days of holidays.
const HOLIDAYS: [(i32, i32); 6] = [(1, 1), (2, 14), (5, 1), (7, 4), (10, 31), (12, 25)];

pub(super) struct Day {
    date: TPCHDate,
    year: i32,
    /// From 1.
    month: i32,
    /// In the month, from 1.
    day: i32,
    /// In the year, from 1.
    day_of_year: i32,
    /// From 0, a Sunday.
    weekday: i32,
    is_last_of_month: bool,
}

impl Day {
    fn month_name(&self) -> &'static str {
        MONTHS[self.month as usize - 1]
    }

    fn season(&self) -> &'static str {
        match self.month {
            1..=3 => "Winter",
            4 | 5 => "Spring",
            6..=8 => "Summer",
            9 | 10 => "Fall",
            _ => "Christmas",
        }
    }

    fn is_weekday(&self) -> bool {
        (1..=5).contains(&self.weekday)
    }
}

/// The key of a day, as in 19920101.
pub(super) fn key(date: TPCHDate) -> i32 {
    let (year, month, day) = date.to_ymd();
    (1900 + year) * 10_000 + month * 100 + day
}

/// All days in their order.
pub(super) fn all() -> impl Iterator<Item = Day> {
    let date = |number: i32| TPCHDate::new(MIN_GENERATE_DATE + number);
    let mut first_of_year = 0;
    (0..DAYS).map(move |number| {
        let (year, month, day) = date(number).to_ymd();
        if (month, day) == (1, 1) {
            first_of_year = number;
        }
        Day {
            date: date(number),
            year: 1900 + year,
            month,
            day,
            day_of_year: number - first_of_year + 1,
            weekday: (FIRST_WEEKDAY + number) % 7,
            is_last_of_month: number + 1 == DAYS || date(number + 1).to_ymd().2 == 1,
        }
    })
}

pub(super) fn columns(days: &[Day]) -> Columns {
    vec![
        ("d_datekey", numbers(days, |day| key(day.date))),
        ("d_date", texts(days, |day| format!("{} {}, {}", day.month_name(), day.day, day.year))),
        ("d_dayofweek", texts(days, |day| WEEKDAYS[day.weekday as usize])),
        ("d_month", texts(days, |day| day.month_name())),
        ("d_year", numbers(days, |day| day.year)),
        ("d_yearmonthnum", numbers(days, |day| day.year * 100 + day.month)),
        ("d_yearmonth", texts(days, |day| format!("{}{}", &day.month_name()[..3], day.year))),
        ("d_daynuminweek", numbers(days, |day| day.weekday + 1)),
        ("d_daynuminmonth", numbers(days, |day| day.day)),
        ("d_daynuminyear", numbers(days, |day| day.day_of_year)),
        ("d_monthnuminyear", numbers(days, |day| day.month)),
        ("d_weeknuminyear", numbers(days, |day| (day.day_of_year - 1) / 7 + 1)),
        ("d_sellingseason", texts(days, Day::season)),
        ("d_lastdayinweekfl", numbers(days, |day| i32::from(day.weekday == 6))),
        ("d_lastdayinmonthfl", numbers(days, |day| i32::from(day.is_last_of_month))),
        ("d_holidayfl", numbers(days, |day| i32::from(HOLIDAYS.contains(&(day.month, day.day))))),
        ("d_weekdayfl", numbers(days, |day| i32::from(day.is_weekday()))),
    ]
}
